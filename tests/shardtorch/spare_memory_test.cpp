// Memory that released tensors leave for the next ones.

#include "shardtorch/sharded_tensor/spare_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <utility>
#include <vector>

#include "shardtorch/sharded_tensor/factories.h"
#include "tests/support/distributed/multi_process_test.h"

namespace shard::test {
namespace {

using namespace std::chrono_literals;

/// Elements of the smallest memory that is kept, as floats.
constexpr std::int64_t kFew = SpareMemory::kLeastBytes / sizeof(float);

/// The address of a tensor's elements.
const void* place_of(const at::Tensor& tensor) { return tensor.const_data_ptr(); }

/// Whether memory of so many floats is kept, at `place`.
bool is_kept(SpareMemory& spare, const void* place, std::int64_t floats = kFew) {
  return place_of(spare.take({floats}, at::kFloat)) == place;
}

TEST(SpareMemory, IsTakenOnceByATensorOfAsManyBytes) {
  SpareMemory spare;
  at::Tensor first = at::ones({kFew});
  const void* const place = place_of(first);
  spare.offer(std::move(first));
  const at::Tensor taken = spare.take({2, kFew / 4}, at::kLong);
  EXPECT_EQ(place_of(taken), place);
  EXPECT_EQ(taken.sizes(), at::IntArrayRef({2, kFew / 4}));
  EXPECT_TRUE(taken.is_contiguous());
  EXPECT_EQ(taken.scalar_type(), at::kLong);
  EXPECT_FALSE(is_kept(spare, place));
}

TEST(SpareMemory, IsNotThatOfAnotherSize) {
  SpareMemory spare;
  at::Tensor small = at::zeros({kFew});
  const void* const place = place_of(small);
  spare.offer(std::move(small));
  const at::Tensor taken = spare.take({kFew + 1}, at::kFloat);
  EXPECT_NE(place_of(taken), place);
  EXPECT_EQ(taken.storage().nbytes(), SpareMemory::kLeastBytes + sizeof(float));
  EXPECT_EQ(spare.take({0}, at::kFloat).numel(), 0);
  EXPECT_TRUE(is_kept(spare, place));
}

TEST(SpareMemory, IsNeverWhatSomebodyElseUses) {
  const auto not_kept = [](at::Tensor offered, const char* why) {
    const void* const place = place_of(offered);
    SpareMemory spare;
    spare.offer(std::move(offered));
    EXPECT_FALSE(is_kept(spare, place)) << why;
  };
  const at::Tensor held = at::ones({kFew}), viewed = at::ones({2, kFew / 2});
  std::vector<float> of_others(kFew);
  not_kept(held, "the tensor is held");
  not_kept(viewed.view({kFew}), "of a view its base is held");
  not_kept(at::from_blob(of_others.data(), {kFew}, at::kFloat), "another made it");
  SpareMemory spare;
  constexpr std::int64_t kTooMany = (SpareMemory::kMostBytes / sizeof(float)) + 1;
  spare.offer(at::ones({kTooMany}));
  EXPECT_NE(spare.take({kTooMany}, at::kFloat)[0].item<float>(), 1) << "it is too much to keep: this is new memory";
  spare.offer(at::Tensor());
  spare.offer(at::zeros({kFew}, at::kMeta));
  EXPECT_TRUE(spare.take({kFew}, at::kFloat).is_cpu());
}

TEST(SpareMemory, ReturnsWhenItsLastUserReleasesIt) {
  SpareMemory spare;
  at::Tensor taken = spare.take({kFew}, at::kFloat);
  const void* const place = place_of(taken);
  at::Tensor view = taken[5];
  taken.reset();
  EXPECT_FALSE(is_kept(spare, place)) << "a view uses it";
  std::thread([other = std::exchange(view, {})]() mutable { other.reset(); }).join();
  EXPECT_TRUE(is_kept(spare, place));
  spare.offer(spare.take({kFew}, at::kFloat));
  EXPECT_TRUE(is_kept(spare, place)) << "an offer is a release";
}

TEST(SpareMemory, OfATensorThatOutlivesItIsUsedOn) {
  std::optional<SpareMemory> spare(std::in_place);
  at::Tensor taken = spare->take({kFew}, at::kFloat);
  spare.reset();
  EXPECT_EQ(taken.fill_(2).sum().item<std::int64_t>(), 2 * kFew);
  taken.resize_({2 * kFew});
  EXPECT_EQ(taken.fill_(3).sum().item<std::int64_t>(), 6 * kFew) << "a tensor like any other";
}

TEST(SpareMemory, IsNotReplacedByLittleMemory) {
  SpareMemory spare;
  at::Tensor taken = spare.take({kFew}, at::kFloat);
  const void* const place = place_of(taken);
  taken.reset();
  spare.take({kFew - 1}, at::kFloat).reset();
  spare.offer(at::zeros({kFew - 1}));
  EXPECT_TRUE(is_kept(spare, place));
}

/// Processes that share memory.
class RanksOfOneHost : public MultiProcessTestCase {
 protected:
  int world_size() const override { return 2; }

  void in_a_world(const std::function<void()>& body) {
    const auto store = c10::make_intrusive<c10d::FileStore>(file_name(), world_size());
    init_process_group(make_c10d_world("gloo", store, rank(), world_size(), 20s));
    body();
    destroy_process_group();
  }
};

SHARD_RANKS_TEST(RanksOfOneHost, ReshardTakesNoMemoryThatTheProgramHolds) {
  in_a_world([] {
    const auto local = [](const ShardedTensor& tensor) -> const at::Tensor& { return tensor.local_shards()[0].tensor; };
    std::vector<ShardedTensor> tensors;
    for (int i = 0; i < 4; ++i) tensors.push_back(sharded_tensor::full(chunk_spec(0), {1024, 512}, i));
    const at::Tensor held = local(tensors[0]), view = local(tensors[1])[0];
    const void* const place = place_of(local(tensors[2]));
    for (ShardedTensor& tensor : tensors) tensor.reshard(chunk_spec(1));
    EXPECT_TRUE(held.eq(0).all().item<bool>());
    EXPECT_TRUE(view.eq(1).all().item<bool>());
    EXPECT_EQ(place_of(local(tensors[3])), place) << "what nobody holds is taken by the next tensor";
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(local(tensors[static_cast<std::size_t>(i)]).eq(i).all().item<bool>()) << i;
  });
}

SHARD_RANKS_TEST(RanksOfOneHost, WholeTensorsTakeTheMemoryOfThoseThatWereReleased) {
  in_a_world([&] {
    const auto ones = sharded_tensor::ones(chunk_spec(0), {1024, 512}),
               twos = sharded_tensor::full(chunk_spec(0), {1024, 512}, 2);
    at::Tensor whole = ones.full_tensor();
    const void* const place = place_of(whole);
    const at::Tensor other = twos.full_tensor();
    EXPECT_NE(place_of(other), place) << "the first is held";
    EXPECT_TRUE(whole.eq(1).all().item<bool>());
    whole.reset();
    const at::Tensor gathered = twos.gather_to(1);
    if (rank() == 1) {
      EXPECT_EQ(place_of(gathered), place);
      EXPECT_TRUE(gathered.equal(other));
    }
  });
}

}  // namespace
}  // namespace shard::test

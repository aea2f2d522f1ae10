// Operators of ShardedTensors without a registered op: compare, copy, clone, detach. Also moves of elements between the
// devices of four processes.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/sharded_tensor/collectives.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/ops.h"
#include "tests/support/distributed/layouts.h"
#include "tests/support/distributed/multi_thread_test.h"
#include "tests/support/distributed/sharded_tensor_test.h"
#include "tests/support/distributed/tensors.h"

namespace shard::test {
namespace {

ShardingSpecPtr rows(const std::vector<int>& ranks = {0, 1, 2, 3}) { return chunk_spec(0, cpu_placements(ranks)); }

class BuiltinOps : public MultiThreadedTestCase {
 protected:
  ShardedTensor ones(const CreateOptions& options = {}) const {
    return sharded_tensor::ones(rows(), {10, 20}, options);
  }
  at::Tensor local(const ShardedTensor& tensor) const { return tensor.local_shards()[0].tensor; }
};

SHARD_RANKS_TEST(BuiltinOps, TR25_equal_is_true_only_where_it_is_on_all_ranks) {
  const ShardedTensor a = ones(), b = ones();
  EXPECT_TRUE(equal(a, b));
  EXPECT_TRUE(at::equal(a.as_tensor(), b.as_tensor()));
  if (rank() == 2) local(b).add_(1e-7);
  EXPECT_FALSE(equal(a, b));
  EXPECT_FALSE(at::equal(a.as_tensor(), b.as_tensor()));
  EXPECT_TRUE(allclose(a, b));
  EXPECT_TRUE(at::allclose(a.as_tensor(), b.as_tensor()));
  EXPECT_FALSE(at::allclose(a.as_tensor(), b.as_tensor(), 0, 0));
}

SHARD_RANKS_TEST(BuiltinOps, NanIsCloseOnlyWhereAskedFor) {
  const ShardedTensor a = ones();
  local(a).fill_(NAN);
  EXPECT_FALSE(allclose(a, a));
  EXPECT_TRUE(allclose(a, a, 1e-5, 1e-8, true));
  EXPECT_TRUE(at::allclose(a.as_tensor(), a.as_tensor(), 1e-5, 1e-8, true));
}

SHARD_RANKS_TEST(BuiltinOps, TensorsOfOtherMetadataAreNotEqual) {
  EXPECT_FALSE(equal(ones(), ones({.dtype = at::kDouble})));
  EXPECT_FALSE(equal(ones(), sharded_tensor::ones(rows({3, 2, 1, 0}), {10, 20})));
}

SHARD_RANKS_TEST(BuiltinOps, TensorsOfDifferentGroupsAreNotEqualAndRefusedInOneOp) {
  const ProcessGroupPtr all = new_group({0, 1, 2, 3});
  const ShardedTensor a = ones(), b = ones({.process_group = all});
  EXPECT_FALSE(equal(a, b));
  const std::string text = "All distributed tensors should use the same ProcessGroup if used together in an op.";
  SHARD_EXPECT_THROW(copy_(a, b), c10::Error, text);
  const auto registration = custom_sharded_op_impl(
      "add",
      [](std::string_view, at::ArrayRef<c10::IValue>, const ProcessGroupPtr&) -> c10::IValue { return at::ones({1}); });
  SHARD_EXPECT_THROW(at::add(a.as_tensor(), b.as_tensor()), c10::Error, text);
  SHARD_EXPECT_THROW(call_op("add", {std::vector<at::Tensor>{a.as_tensor(), b.as_tensor()}}), c10::Error, text);
}

SHARD_RANKS_TEST(BuiltinOps, ProcessesOutsideTheGroupSeeEquality) {
  const ProcessGroupPtr pair = new_group({2, 3});
  const ShardedTensor a = sharded_tensor::ones(rows({2, 3}), {10, 20}, {.process_group = pair});
  const ShardedTensor b = sharded_tensor::zeros(rows({2, 3}), {10, 20}, {.process_group = pair});
  EXPECT_EQ(equal(a, b), rank() < 2);
}

SHARD_RANKS_TEST(BuiltinOps, ARankThatCannotCompareEndsAll) {
  std::vector<RemoteDevice> placements;
  for (int owner = 0; owner < 4; ++owner) placements.emplace_back(owner, at::Device(owner == 3 ? at::kMeta : at::kCPU));
  const ShardedTensor st = sharded_tensor::empty(chunk_spec(0, placements), {8, 2});
  SHARD_EXPECT_THROW(equal(st, st), c10::NotImplementedError, "equal");
}

SHARD_RANKS_TEST(BuiltinOps, ComparisonWantsTwoShardedTensors) {
  const at::Tensor st = ones().as_tensor();
  SHARD_EXPECT_THROW(at::equal(st, at::ones({10, 20})), c10::TypeError,
                     "Both arguments to torch.equal need to be of type ShardedTensor");
  SHARD_EXPECT_THROW(at::allclose(at::ones({10, 20}), st), c10::TypeError, "Both arguments to torch.allclose");
  SHARD_EXPECT_THROW(call_op("equal", {st}), c10::ValueError, "Expected two arguments for torch.equal");
}

SHARD_RANKS_TEST(BuiltinOps, CloneCopiesShardsAndKeepsTheGroup) {
  const ShardedTensor st = ones();
  const ShardedTensor copy = ShardedTensor::of(st.as_tensor().clone());
  ASSERT_TRUE(copy.defined());
  EXPECT_EQ(copy.metadata(), st.metadata());
  EXPECT_EQ(copy.process_group(), st.process_group());
  EXPECT_EQ(copy.sharding_spec(), st.sharding_spec());
  local(copy).zero_();
  EXPECT_TRUE(tensors_equal(local(st), at::ones_like(local(st))));
  SHARD_EXPECT_THROW(st.as_tensor().clone(at::MemoryFormat::ChannelsLast), c10::Error,
                     "Only support torch.preserve_format for ShardedTensor!");
}

SHARD_RANKS_TEST(BuiltinOps, EmptyShardsPastTheEndAreCloned) {
  const ShardedTensor st = sharded_tensor::ones(rows(), {2, 20});
  EXPECT_TRUE(equal(clone(st), st));
}

SHARD_RANKS_TEST(BuiltinOps, DeepCopiesAreLeavesAndClonesAreNot) {
  const ShardedTensor st = ones({.requires_grad = true});
  EXPECT_FALSE(local(clone(st)).is_leaf());
  const ShardedTensor copy = deepcopy(st);
  EXPECT_TRUE(local(copy).is_leaf());
  EXPECT_TRUE(local(copy).requires_grad());
  EXPECT_TRUE(copy.requires_grad());
  EXPECT_FALSE(local(copy).is_alias_of(local(st)));
  EXPECT_EQ(copy.process_group(), st.process_group());
}

SHARD_RANKS_TEST(BuiltinOps, ClonesWithoutGradModeNeedNoGradientAnywhere) {
  const ShardedTensor st = ones({.requires_grad = true});
  const at::NoGradGuard no_grad;
  const ShardedTensor copy = clone(st);
  EXPECT_FALSE(copy.requires_grad());
  EXPECT_FALSE(copy.metadata().tensor_properties.requires_grad);
  EXPECT_FALSE(local(copy).requires_grad());
  EXPECT_TRUE(local(deepcopy(st)).requires_grad());
}

SHARD_RANKS_TEST(BuiltinOps, DetachSharesElementsAndNeedsNoGradient) {
  const ShardedTensor st = ones({.requires_grad = true});
  const ShardedTensor detached = ShardedTensor::of(st.as_tensor().detach());
  EXPECT_FALSE(detached.requires_grad());
  EXPECT_FALSE(detached.metadata().tensor_properties.requires_grad);
  EXPECT_FALSE(local(detached).requires_grad());
  EXPECT_TRUE(local(detached).is_alias_of(local(st)));
  EXPECT_TRUE(st.requires_grad());
}

SHARD_RANKS_TEST(BuiltinOps, RequiresGradIsOfTheWrapperTheShardsAndTheMetadata) {
  const ShardedTensor st = ones();
  EXPECT_TRUE(call_op("requires_grad_", {st.as_tensor()}).toTensor().is_same(st.as_tensor()));
  EXPECT_TRUE(st.requires_grad());
  EXPECT_TRUE(st.metadata().tensor_properties.requires_grad);
  EXPECT_TRUE(local(st).requires_grad());
  EXPECT_TRUE(requires_grad_(st, false).is_same(st));
  EXPECT_FALSE(st.requires_grad());
  EXPECT_FALSE(local(st).requires_grad());
  const ShardedTensor integers = ones({.dtype = at::kInt});
  EXPECT_ANY_THROW(requires_grad_(integers));
  EXPECT_FALSE(integers.requires_grad());
}

SHARD_RANKS_TEST(BuiltinOps, CopyConvertsTheDtypeButNeedsEqualShards) {
  const ShardedTensor st = sharded_tensor::rand(rows(), {10, 20});
  const ShardedTensor target = ones({.dtype = at::kDouble});
  EXPECT_TRUE(target.as_tensor().copy_(st.as_tensor()).is_same(target.as_tensor()));
  EXPECT_TRUE(tensors_equal(local(target), local(st).to(at::kDouble)));
  SHARD_EXPECT_THROW(copy_(sharded_tensor::ones(rows({3, 2, 1, 0}), {10, 20}), st), c10::Error,
                     "inplace copy can only happen between two ShardedTensor with same metadata!");
}

enum class LocalOrder { kRising, kFalling };

/// Eight rows, two shards of one row on each of four ranks; every element is the number of its row.
ShardedTensor numbered_rows(int rank, LocalOrder order) {
  ShardedTensorMetadata metadata{.shards_metadata = {}, .size = {8, 2}, .tensor_properties = {}};
  for (int row = 0; row < 8; ++row) {
    metadata.shards_metadata.emplace_back(Sizes{row, 0}, Sizes{1, 2}, RemoteDevice(row / 2, at::kCPU));
  }
  std::vector<Shard> own;
  for (const int row : {2 * rank, 2 * rank + 1}) {
    own.emplace_back(at::full({1, 2}, row, at::kFloat), metadata.shards_metadata[static_cast<std::size_t>(row)]);
  }
  if (order == LocalOrder::kFalling) std::swap(own[0], own[1]);
  return ShardedTensor::init_from_local_shards_and_global_metadata(std::move(own), metadata);
}

SHARD_RANKS_TEST(BuiltinOps, CopyGoesFromBoxToBoxInAnyLocalOrder) {
  const ShardedTensor from = numbered_rows(rank(), LocalOrder::kFalling);
  const ShardedTensor to = numbered_rows(rank(), LocalOrder::kRising);
  for (const Shard& shard : to.local_shards()) shard.tensor.zero_();
  copy_(to, from);
  for (const Shard& shard : to.local_shards()) {
    EXPECT_EQ(shard.tensor[0][1].item<std::int64_t>(), shard.metadata.shard_offsets[0]);
  }
}

SHARD_RANKS_TEST(BuiltinOps, LocalOrderDoesNotMakeTensorsDifferent) {
  EXPECT_TRUE(equal(numbered_rows(rank(), LocalOrder::kFalling), numbered_rows(rank(), LocalOrder::kRising)));
}

SHARD_RANKS_TEST(BuiltinOps, TypeAsTakesTheDtypeOfAnyTensor) {
  const ShardedTensor st = ones();
  EXPECT_TRUE(type_as(st, ones()).is_same(st));
  const ShardedTensor halves = ShardedTensor::of(st.as_tensor().type_as(at::ones({1}, at::kHalf)));
  EXPECT_EQ(halves.dtype(), at::kHalf);
  EXPECT_EQ(local(halves).scalar_type(), at::kHalf);
  EXPECT_EQ(type_as(st, halves).dtype(), at::kHalf);
}

// --- Devices of four processes: the CPU, one GPU for all, or a GPU each ----------------------------------------------

class RanksDevices : public ShardedTensorTestBase {
 protected:
  at::Tensor here(const at::Tensor& tensor) const { return tensor.to(device()); }
  /// Whether the group uses tensors of this rank's device in place: Gloo does not for those of a GPU.
  bool is_direct() const { return default_group()->preferred_device() == device(); }
  void expect_moved(bool by_copies) const {
    const WireBytes moved = default_group()->wire_bytes();
    EXPECT_GT(by_copies ? moved.staged : moved.direct, 0);
    EXPECT_EQ(by_copies ? moved.direct : moved.staged, 0);
  }
};

SHARD_RANKS_TEST(RanksDevices, ShardsMoveWithoutCopiesIfTheGroupSupportsTheDevice) {
  with_comms({.rpc = false}, [&] {
    const at::Tensor whole = here(at::arange(64 * 64, at::kFloat).view({64, 64}));
    const ShardingSpecPtr columns = chunk_spec(1, placements());
    ShardedTensor tensor = shard_tensor(whole, rows());
    tensor.reshard(chunk_spec(1, placements({2, 0, 3, 1})));
    tensor.reshard(columns);
    EXPECT_TRUE(equal(tensor, shard_tensor(whole, columns)));
    const at::Tensor out = at::zeros_like(whole);
    tensor.gather(1, rank() == 1 ? std::optional(out) : std::nullopt);
    EXPECT_TRUE(rank() != 1 || out.equal(whole));
    EXPECT_TRUE(tensor.full_tensor().equal(whole));
    EXPECT_EQ(tensor.full_tensor().device(), device());
    expect_moved(/*by_copies=*/!is_direct());
  });
}

SHARD_RANKS_TEST(RanksDevices, CollectivesReduceTensorsOfEveryDtype) {
  with_comms({.rpc = false}, [&] {
    const int own = rank();
    for (const at::ScalarType dtype : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                                       at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
      const at::Tensor sum = here((at::arange(7) + own).to(dtype));
      all_reduce(sum);
      EXPECT_TRUE(tensors_equal(sum, (at::arange(7) * 4 + 6).to(dtype))) << dtype;
      if (at::isComplexType(dtype)) continue;
      const at::Tensor most = here(at::tensor({own, 3 - own}).to(dtype)), least = most.clone();
      all_reduce(most, ReduceOp::kMax);
      all_reduce(least, ReduceOp::kMin);
      EXPECT_TRUE(tensors_equal(most, at::tensor({3, 3}).to(dtype))) << dtype;
      EXPECT_TRUE(tensors_equal(least, at::tensor({0, 0}).to(dtype))) << dtype;
    }
    const at::Tensor mean = here(at::full({3}, own, at::kDouble)), product = here(at::full({3}, own + 1));
    all_reduce(mean, ReduceOp::kMean);
    all_reduce(product, ReduceOp::kProduct);
    EXPECT_TRUE(tensors_equal(mean, at::full({3}, 1.5, at::kDouble)));
    EXPECT_TRUE(tensors_equal(product, at::full({3}, 24)));
    const at::Tensor part = reduce_scatter(here(at::arange(24, at::kFloat).view({3, 8})), ReduceOp::kSum, 1);
    EXPECT_EQ(part.device(), device());
    EXPECT_TRUE(tensors_equal(part, at::arange(24, at::kFloat).view({3, 8}).narrow(1, 2 * own, 2) * 4));
    expect_moved(/*by_copies=*/!is_direct());
  });
}

SHARD_RANKS_TEST(RanksDevices, CollectivesMoveTensorsOfEveryDtypeThere) {
  with_comms({.rpc = false}, [&] {
    for (const at::ScalarType dtype :
         {at::kByte, at::kShort, at::kLong, at::kHalf, at::kBFloat16, at::kDouble, at::kBool, at::kUInt16,
          at::kFloat8_e4m3fn, at::kComplexFloat, at::kComplexHalf}) {
      const auto of = [&](int of_rank) { return (at::arange(6) + of_rank).to(dtype).view({2, 3}); };
      const auto bytes = [](const at::Tensor& tensor) { return tensor.cpu().contiguous().view(at::kByte); };
      const at::Tensor first = here(of(rank())), all = all_gather(here(of(rank())));
      broadcast(first, 1);
      EXPECT_TRUE(bytes(first).equal(bytes(of(1)))) << dtype;
      for (int each = 0; each < world_size(); ++each) {
        EXPECT_TRUE(bytes(all.narrow(0, 2 * each, 2)).equal(bytes(of(each)))) << dtype;
      }
    }
    const auto piece = [](int from, int to) { return at::full({from, to + 1}, 10 * from + to); };
    std::vector<at::Tensor> to, from;
    for (int each = 0; each < world_size(); ++each) {
      to.push_back(here(piece(rank(), each)));
      from.push_back(here(at::zeros_like(piece(each, rank()))));
    }
    all_to_all(to, from);
    for (int each = 0; each < world_size(); ++each) {
      EXPECT_TRUE(tensors_equal(from[static_cast<std::size_t>(each)], piece(each, rank())));
    }
    expect_moved(/*by_copies=*/!is_direct());
  });
}

SHARD_RANKS_TEST(RanksDevices, DTensorsAreRedistributedThere) {
  with_comms({.rpc = false}, [&] {
    const auto mesh = dtensor::init_device_mesh(device().type(), {2, 2}, {"dp", "tp"});
    const at::Tensor whole = at::arange(35, at::kDouble).view({7, 5});
    const auto blocks =
        dtensor::distribute_tensor(here(whole).requires_grad_(), mesh, {dtensor::Shard{0}, dtensor::Shard{1}});
    const auto columns = blocks.redistribute({dtensor::Replicate(), dtensor::Shard{1}});
    EXPECT_EQ(columns.local().device(), device());
    EXPECT_TRUE(tensors_equal(columns.full_tensor().detach(), whole));
    (columns.local() * columns.local().detach()).sum().backward();
    EXPECT_TRUE(tensors_equal(blocks.local().grad(), blocks.local().detach()));
    const dtensor::Placements terms{dtensor::Partial(), dtensor::Partial()};
    const at::Tensor sum = dtensor::DTensor::from_local(here(at::ones({3})), mesh, terms).full_tensor();
    EXPECT_EQ(sum.device(), device());
    EXPECT_TRUE(tensors_equal(sum, at::full({3}, 4.)));
  });
}

}  // namespace
}  // namespace shard::test

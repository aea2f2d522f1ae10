// Ranks that disagree about one ShardedTensor or DTensor: every collective with it throws on all ranks, names both
// sides, and leaves the group and the tensor unchanged. dtensor_with_python.py runs Python with the same disagreements.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/sharded_tensor/functional.h"
#include "shardtorch/sharded_tensor/ops.h"
#include "shardtorch/sharded_tensor/sharded_tensor.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"
#include "tests/shardtorch/tensor_fixture.h"

namespace shard::test {
namespace {

const std::vector<int> kRanks{0, 1, 2, 3};

ShardedTensor make(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options = {}) {
  ShardedTensor tensor(std::move(spec), size, options);
  for (const Shard& shard : tensor.local_shards()) {
    const at::NoGradGuard no_grad;
    if (!shard.tensor.is_meta()) shard.tensor.fill_(1);
  }
  return tensor;
}

ShardingSpecPtr rows_on(c10::DeviceType device) {
  std::vector<RemoteDevice> placements;
  for (const int rank : kRanks) placements.emplace_back(rank, at::Device(device));
  return chunk_spec(0, placements);
}

/// A tensor without shards on rank 1, whose properties therefore are only in the metadata.
ShardedTensor with_properties(const TensorProperties& properties) {
  const ShardedTensorMetadata metadata = chunks(0, {0, 2, 3})->build_metadata({3, 4}, properties);
  std::vector<Shard> own;
  for (const ShardMetadata& shard : metadata.shards_metadata) {
    if (shard.placement->rank() == default_group()->rank()) own.emplace_back(at::ones(shard.shard_sizes), shard);
  }
  return ShardedTensor::init_from_local_shards_and_global_metadata(std::move(own), metadata);
}

/// The difference between ranks: the fact of most ranks, and that of one.
struct Field {
  std::string name;
  std::function<ShardedTensor(bool is_odd_one)> tensor;
  std::string usual, odd;
};

const std::vector<Field>& fields() {
  static const std::vector<Field> kFields{
      {"Size",
       [](bool odd) {
         return make(chunks(0, kRanks), odd ? Sizes{8, 4} : Sizes{4, 4});
       },
       "size=[4, 4]", "size=[8, 4]"},
      {"Dtype",
       [](bool odd) {
         return make(chunks(0, kRanks), {4, 4}, {.dtype = odd ? at::kDouble : at::kFloat});
       },
       "dtype=Float", "dtype=Double"},
      {"RequiresGrad",
       [](bool odd) {
         return make(chunks(0, kRanks), {4, 4}, {.requires_grad = odd});
       },
       "requires_grad=false", "requires_grad=true"},
      {"PinMemory", [](bool odd) { return with_properties({.dtype = at::kFloat, .pin_memory = odd}); },
       "pin_memory=false", "pin_memory=true"},
      {"NumberOfShards",
       [](bool odd) {
         return make(chunks(0, odd ? std::vector{0, 1, 2} : kRanks), {3, 4});
       },
       "number of shards=4", "number of shards=3"},
      {"Boxes",
       [](bool odd) {
         return make(chunks(odd ? 1 : 0, kRanks), {4, 4});
       },
       "shards_metadata[0]=ShardMetadata(shard_offsets=[0, 0], shard_sizes=[1, 4], placement=rank:0/cpu)",
       "shards_metadata[0]=ShardMetadata(shard_offsets=[0, 0], shard_sizes=[4, 1], placement=rank:0/cpu)"},
      {"Placements",
       [](bool odd) {
         return make(chunks(0, odd ? std::vector{0, 2, 1, 3} : kRanks), {4, 4});
       },
       "shards_metadata[1]=ShardMetadata(shard_offsets=[1, 0], shard_sizes=[1, 4], placement=rank:1/cpu)",
       "shards_metadata[1]=ShardMetadata(shard_offsets=[1, 0], shard_sizes=[1, 4], placement=rank:2/cpu)"},
      {"KindsOfDevice",
       [](bool odd) {
         return make(rows_on(odd ? at::kMeta : at::kCPU), {4, 4});
       },
       "placement=rank:0/cpu)", "placement=rank:0/meta)"},
  };
  return kFields;
}

struct Collective {
  std::string name;
  std::function<void(ShardedTensor tensor)> call;
};

void gather_to_rank_0(const ShardedTensor& tensor) {
  std::optional<at::Tensor> out;
  if (default_group()->rank() == 0) out = at::zeros(tensor.sizes());
  tensor.gather(0, out);
}

const std::vector<Collective>& collectives() {
  static const std::vector<Collective> kCollectives{
      {"Gather", gather_to_rank_0},
      {"FullTensor", [](const ShardedTensor& tensor) { tensor.full_tensor(); }},
      {"SummedFullTensor",
       [](const ShardedTensor& tensor) { functional::full_tensor(tensor, functional::Losses::kSummed); }},
      {"Reshard",
       [](ShardedTensor tensor) {
         tensor.reshard(chunks(1, {3, 2, 1, 0}));
       }},
      {"ReshardToTheSame", [](ShardedTensor tensor) { tensor.reshard(chunks(0, kRanks)); }},
      {"Equal", [](const ShardedTensor& tensor) { equal(tensor, tensor); }},
      {"EqualOfDispatcher", [](const ShardedTensor& tensor) { at::equal(tensor.as_tensor(), tensor.as_tensor()); }},
      {"AllClose", [](const ShardedTensor& tensor) { allclose(tensor, tensor); }},
  };
  return kCollectives;
}

/// Checks that the group still transfers elements, and gradients back.
void expect_alive() {
  default_group()->barrier();
  const at::Tensor whole = counted({5, 3}, at::kDouble);
  ShardedTensor good = cut(whole, chunks(0, {3, 1, 0, 2}));
  EXPECT_TRUE(at::equal(good.full_tensor(), whole));
  requires_grad_(good);
  const at::Tensor leaf = good.local_tensor();
  good.reshard(chunks(1, kRanks));
  (good.local_tensor() * 2).sum().backward();
  EXPECT_TRUE(at::equal(leaf.grad(), at::full_like(leaf, 2)));
}

/// Rank 1 is the odd one.
void expect_refused(const std::string& usual, const std::string& odd, const std::function<void()>& call) {
  const int rank = default_group()->rank(), other = rank == 1 ? 0 : 1;
  const auto side = [&](bool is_odd, int of) { return (is_odd ? odd : usual) + " on rank: " + std::to_string(of); };
  EXPECT_THAT(call, ::testing::ThrowsMessage<c10::ValueError>(
                        ::testing::AllOf(::testing::HasSubstr(side(rank == 1, rank) + " does not match with "),
                                         ::testing::HasSubstr(side(rank != 1, other)))));
}

class DisagreementAbout : public ::testing::TestWithParam<std::tuple<Field, Collective>> {};

TEST_P(DisagreementAbout, EndsOnAllRanksWithBothSides) {
  const auto& [field, collective] = GetParam();
  spawn_threads_and_init_comms(4, [&](int rank) {
    const ShardedTensor tensor = field.tensor(rank == 1);
    std::vector<at::Tensor> before;
    for (const Shard& shard : tensor.local_shards()) before.push_back(shard.tensor);
    expect_refused(field.usual, field.odd, [&] { collective.call(tensor); });
    ASSERT_EQ(tensor.local_shards().size(), before.size());
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(tensor.local_shards()[i].tensor.is_same(before[i]));
    expect_alive();
  });
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<Field, Collective>>& each) {
  return std::get<0>(each.param).name + std::get<1>(each.param).name;
}

INSTANTIATE_TEST_SUITE_P(All, DisagreementAbout,
                         ::testing::Combine(::testing::ValuesIn(fields()), ::testing::ValuesIn(collectives())),
                         name_of);

using Disagreement = Tensor;

SHARD_RANKS_TEST(Disagreement, TheSecondOfTwoTensorsIsNamed) {
  const ShardedTensor good = make(chunks(0, kRanks), {4, 4});
  const ShardedTensor other = make(chunks(0, kRanks), rank() == 1 ? Sizes{8, 4} : Sizes{4, 4});
  expect_refused("second tensor: size=[4, 4]", "second tensor: size=[8, 4]", [&] { equal(good, other); });
  expect_alive();
}

SHARD_RANKS_TEST(Disagreement, TolerancesAreArgumentsToo) {
  const ShardedTensor tensor = make(chunks(0, kRanks), {4, 4});
  expect_refused("rtol=0.5", "rtol=0.25", [&] { allclose(tensor, tensor, rank() == 1 ? 0.25 : 0.5); });
  expect_refused("equal_nan=false", "equal_nan=true", [&] { allclose(tensor, tensor, 0, 0, rank() == 1); });
  expect_alive();
}

/// Backward is a collective, in which ranks without gradients would be missing.
SHARD_RANKS_TEST(Disagreement, AboutWhetherGradientsAreRecorded) {
  ShardedTensor tensor = make(chunks(0, kRanks), {4, 4}, {.requires_grad = true});
  const std::string usual = "gradients are recorded=true", odd = "gradients are recorded=false";
  const auto without_on_rank_1 = [&](const std::function<void()>& call) {
    const at::AutoGradMode mode(rank() != 1);
    expect_refused(usual, odd, call);
  };
  without_on_rank_1([&] { tensor.reshard(chunks(1, kRanks)); });
  without_on_rank_1([&] { functional::full_tensor(tensor, functional::Losses::kSummed); });
  const ShardedTensor frozen = make(chunks(0, kRanks), {4, 4});
  if (rank() != 1) frozen.local_tensor().requires_grad_();  // Changes the tensor without its metadata.
  expect_refused(usual, odd, [&] { functional::full_tensor(frozen, functional::Losses::kSummed); });
  expect_alive();
}

SHARD_RANKS_TEST(Disagreement, AboutTheLosses) {
  const ShardedTensor tensor = make(chunks(0, kRanks), {4, 4});
  expect_refused("losses=summed", "losses=replicated", [&] {
    functional::full_tensor(tensor, rank() == 1 ? functional::Losses::kReplicated : functional::Losses::kSummed);
  });
}

/// Specs can differ although the shards are the same: a rank with the whole tensor fits chunks along either dimension.
SHARD_RANKS_TEST(Disagreement, AboutWhetherShardsMove) {
  ShardedTensor tensor = make(chunks(0, kRanks), {1, 1});
  tensor.set_sharding_spec(chunks(rank() == 1 ? 1 : 0, kRanks));
  expect_refused("moves=false", "moves=true", [&] { tensor.reshard(chunks(0, kRanks)); });
  expect_alive();
}

/// A disagreement between ranks is reported before an error of a plan that only one rank has.
SHARD_RANKS_TEST(Disagreement, IsNamedBeforeAWrongArgument) {
  const ShardedTensor tensor = make(chunks(0, kRanks), rank() == 1 ? Sizes{8, 4} : Sizes{4, 4});
  expect_refused("size=[4, 4]", "size=[8, 4]", [&] { tensor.gather(1, at::zeros({2, 2})); });
  expect_alive();
}

SHARD_RANKS_TEST(Disagreement, AboutWhetherTheSizeIsGiven) {
  const Shard own(at::ones({2, 3}), ShardMetadata({rank() * 2, 0}, {2, 3}, on(rank())));
  const Sizes size{8, 3};
  expect_refused("global_size is given=true", "global_size is given=false", [&] {
    ShardedTensor::init_from_local_shards({own},
                                          rank() == 1 ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(size));
  });
  expect_alive();
}

/// The fields of a whole tensor's metadata, one by one. No tensor can have a different layout or memory format, but
/// the facts of all ranks contain them.
TEST(FactsOfATensor, ContainEveryField) {
  const ShardedTensorMetadata usual{{ShardMetadata({0}, {4}, RemoteDevice("rank:0"))}, {4}, {}};
  const auto expect_different = [&](const auto& change) {
    ShardedTensorMetadata other = usual;
    change(other);
    EXPECT_NE(facts_of(other), facts_of(usual)) << other;
  };
  expect_different([](ShardedTensorMetadata& other) { other.size = {5}; });
  expect_different([](ShardedTensorMetadata& other) { other.shards_metadata.clear(); });
  expect_different([](ShardedTensorMetadata& other) { other.shards_metadata[0].shard_offsets = {1}; });
  expect_different([](ShardedTensorMetadata& other) { other.shards_metadata[0].shard_sizes = {3}; });
  expect_different([](ShardedTensorMetadata& other) { other.shards_metadata[0].placement = "rank:1"; });
  expect_different([](ShardedTensorMetadata& other) { other.tensor_properties.dtype = at::kInt; });
  expect_different([](ShardedTensorMetadata& other) { other.tensor_properties.layout = at::kSparse; });
  expect_different([](ShardedTensorMetadata& other) { other.tensor_properties.requires_grad = true; });
  expect_different(
      [](ShardedTensorMetadata& other) { other.tensor_properties.memory_format = at::MemoryFormat::ChannelsLast; });
  expect_different([](ShardedTensorMetadata& other) { other.tensor_properties.pin_memory = true; });
}

// --- DTensors -------------------------------------------------------------------------------------------------------

/// Calls with a DTensor that rank 1 has differently.
SHARD_RANKS_TEST(Disagreement, AboutADTensor) {
  namespace dt = dtensor;
  const dt::DeviceMeshPtr mesh = dt::init_device_mesh(at::kCPU, {4});
  const bool odd = rank() == 1;
  const auto zeros = [&](Sizes size, dt::Placement placement, at::ScalarType dtype = at::kFloat) {
    return dt::zeros(size, mesh, {placement}, {.dtype = dtype});
  };
  const dt::DTensor by_dimension = zeros({4, 4}, dt::Shard{odd ? 1 : 0}),
                    by_size = zeros({odd ? 8 : 4, 4}, dt::Shard{0}),
                    by_dtype = zeros({4, 4}, dt::Shard{0}, odd ? at::kDouble : at::kFloat),
                    terms = zeros({4, 4}, dt::Partial(), odd ? at::kDouble : at::kFloat);
  expect_refused("placements=[S(0)]", "placements=[S(1)]", [&] { by_dimension.full_tensor(); });
  expect_refused("size=[4, 4], placements=[S(0)]", "size=[8, 4], placements=[S(0)]", [&] { by_size.full_tensor(); });
  expect_refused("size=[4, 4], placements=[S(0)]", "size=[8, 4], placements=[S(0)]",
                 [&] { by_size.redistribute({dt::Shard{1}}); });
  expect_refused("dtype=Float", "dtype=Double", [&] { by_dtype.redistribute({dt::Shard{1}}); });
  expect_refused("dtype=Float", "dtype=Double", [&] { terms.redistribute({dt::Replicate()}); });
  expect_refused("dtype=Float", "dtype=Double",
                 [&] { dt::distribute_tensor(at::ones({4}, odd ? at::kDouble : at::kFloat), mesh, {dt::Shard{0}}); });
  expect_alive();
  EXPECT_TRUE(zeros({4, 4}, dt::Shard{0}).full_tensor().equal(at::zeros({4, 4})));
}

/// A rank knows only the indices of its own devices.
TEST(FactsOfATensor, LeaveTheIndexOfADeviceOut) {
  const auto facts_on = [](const char* placement) {
    return facts_of({{ShardMetadata({0}, {4}, RemoteDevice(placement))}, {4}, {}});
  };
  EXPECT_EQ(facts_on("rank:1/cuda:0"), facts_on("rank:1/cuda:3"));
  EXPECT_NE(facts_on("rank:1/cuda:0"), facts_on("rank:0/cuda:0"));
  EXPECT_NE(facts_on("rank:1/cuda:0"), facts_on("rank:1/cpu"));
}

}  // namespace
}  // namespace shard::test

// Checkpoints of sharded state, with ranks as threads: saved by some, loaded by others under other shardings.
#include "libshard/torch/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

#include "formats/registry.h"
#include "libshard/core/error.h"
#include "libshard/torch/sharded_tensor/factories.h"
#include "libshard/torch/state/dtypes.h"
#include "tests/support/distributed/multi_thread_test.h"
#include "tests/support/temp_folder.h"

namespace shard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void as_ranks(int ranks, const std::function<void(int)>& body) { test::spawn_threads_and_init_comms(ranks, body); }

RemoteDevice on(int rank) { return RemoteDevice(rank, at::kCPU); }

/// Ranks from, from + step, ...
std::vector<RemoteDevice> placements(int ranks, int first = 0) {
  std::vector<RemoteDevice> all;
  for (int i = 0; i < ranks; ++i) all.push_back(on((i + first) % ranks));
  return all;
}

/// Rows by columns blocks of a matrix, dealt out to ranks in turn; the cuts are uneven. The last block comes first.
ShardingSpecPtr grid_spec(std::int64_t height, std::int64_t width, int rows, int columns, int ranks) {
  std::vector<ShardMetadata> shards;
  const auto cut = [](std::int64_t n, int parts, int i) { return i * (n / parts); };
  const auto end = [&](std::int64_t n, int parts, int i) { return i + 1 == parts ? n : cut(n, parts, i + 1); };
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      const std::int64_t top = cut(height, rows, r), left = cut(width, columns, c);
      shards.emplace_back(Sizes{top, left}, Sizes{end(height, rows, r) - top, end(width, columns, c) - left},
                          on((r * columns + c) % ranks));
    }
  }
  std::ranges::reverse(shards);
  return enumerable_spec(std::move(shards));
}

/// Elements as integers of their size, which every operator knows.
at::Tensor raw(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return tensor.view(at::kByte);
    case 2:
      return tensor.view(at::kShort);
    case 4:
      return tensor.view(at::kInt);
    case 8:
      return tensor.view(at::kLong);
    default:
      return tensor.view(at::kComplexDouble);
  }
}

/// Bytes that differ from element to element.
at::Tensor content(at::IntArrayRef shape, at::ScalarType type, int seed = 0) {
  const std::int64_t elements = c10::multiply_integers(shape);
  const std::int64_t width = static_cast<std::int64_t>(c10::elementSize(type));
  at::Tensor bytes = at::arange(elements * width, at::kLong).mul(7 + 2 * seed).add(seed).remainder(251).to(at::kByte);
  if (type == at::kBool) return bytes.remainder(2).to(at::kBool).reshape(shape);
  if (type == at::kComplexDouble) bytes = bytes.remainder(2);  // No NaNs, which would not equal themselves.
  return bytes.view(type).reshape(shape);
}

/// `whole` cut as `spec` says, with only this rank's part in memory.
ShardedTensor cut(const at::Tensor& whole, const ShardingSpecPtr& spec, ProcessGroupPtr group = nullptr) {
  CreateOptions options;
  options.dtype = whole.scalar_type();
  options.process_group = std::move(group);
  const ShardedTensor tensor(spec, whole.sizes(), options);
  for (const Shard& shard : tensor.local_shards()) {
    if (shard.tensor.numel() != 0) raw(shard.tensor).copy_(raw(narrow_tensor(whole, shard.metadata).contiguous()));
  }
  return tensor;
}

/// Of `whole`'s shape, filled with something else.
ShardedTensor blank(const at::Tensor& whole, const ShardingSpecPtr& spec, ProcessGroupPtr group = nullptr) {
  return cut(at::zeros_like(raw(whole)).view(whole.scalar_type()), spec, std::move(group));
}

void expect_content(const ShardedTensor& tensor, const at::Tensor& whole) {
  for (const Shard& shard : tensor.local_shards()) {
    if (shard.tensor.numel() == 0) continue;
    EXPECT_TRUE(raw(shard.tensor).equal(raw(narrow_tensor(whole, shard.metadata).contiguous())))
        << shard.metadata << " of " << whole.sizes();
  }
}

c10::IValue value(const ShardedTensor& tensor) { return tensor.as_tensor(); }

StateDict state_of(std::initializer_list<std::pair<std::string, c10::IValue>> items) {
  StateDict state;
  for (const auto& [name, each] : items) state.insert(name, each);
  return state;
}

std::optional<Error> error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

void expect_error(const std::function<void()>& action, ErrorCode code, const std::string& words,
                  const std::string& tensor = "") {
  const std::optional<Error> error = error_of(action);
  ASSERT_TRUE(error) << "nothing was thrown, expected " << words;
  EXPECT_EQ(error->code(), code) << error->what();
  EXPECT_THAT(error->what(), HasSubstr(words));
  EXPECT_TRUE(tensor.empty() || error->tensor() == tensor) << error->tensor();
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

class Checkpoint : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "saved") const { return folder_ / name; }
  static checkpoint::SaveOptions as(const std::string& format) { return {.format = format, .sync = false}; }

  test::TempFolder folder_;
};

class CheckpointFormat : public Checkpoint, public ::testing::WithParamInterface<std::string> {};

INSTANTIATE_TEST_SUITE_P(Formats, CheckpointFormat, ::testing::Values("dcp", "dcp-hf", "torch-ranks"),
                         [](const auto& format) {
                           std::string name = format.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

/// Ways to cut a matrix over some ranks, one box a rank.
std::vector<ShardingSpecPtr> single_box_specs(const at::Tensor& whole, int ranks) {
  std::vector<ShardingSpecPtr> specs{chunk_spec(0, placements(ranks)), chunk_spec(1, placements(ranks)),
                                     chunk_spec(-1, placements(ranks, 1))};
  const int rows = ranks == 4 ? 2 : 1;
  specs.push_back(grid_spec(whole.size(0), whole.size(1), rows, ranks / rows, ranks));
  return specs;
}

/// The same, and with several boxes a rank.
std::vector<ShardingSpecPtr> all_specs(const at::Tensor& whole, int ranks) {
  std::vector<ShardingSpecPtr> specs = single_box_specs(whole, ranks);
  specs.push_back(grid_spec(whole.size(0), whole.size(1), 3, 4, ranks));
  std::vector<RemoteDevice> twice = placements(ranks);
  twice.insert(twice.end(), twice.begin(), twice.end());
  specs.push_back(chunk_spec(0, twice));
  return specs;
}

TEST_P(CheckpointFormat, IsLoadedByAnyRanksUnderAnySharding) {
  const at::Tensor whole = content({11, 9}, at::kFloat);
  const std::size_t specs = single_box_specs(whole, 4).size();
  as_ranks(4, [&](int) {
    StateDict state;
    for (std::size_t i = 0; i < specs; ++i) {
      state.insert(c10::str("w", i), value(cut(whole, single_box_specs(whole, 4)[i])));
    }
    checkpoint::save(state, path(), nullptr, as(GetParam()));
  });
  for (int ranks = 1; ranks <= 4; ++ranks) {
    as_ranks(ranks, [&](int) {
      for (const ShardingSpecPtr& spec : all_specs(whole, ranks)) {
        StateDict state;
        for (std::size_t i = 0; i < specs; ++i) state.insert(c10::str("w", i), value(blank(whole, spec)));
        checkpoint::load(state, path());
        for (const auto& item : state) expect_content(ShardedTensor::of(item.value().toTensor()), whole);
      }
    });
  }
}

TEST_P(CheckpointFormat, HoldsEveryDtype) {
  std::vector<at::ScalarType> types{
      at::kBool,   at::kByte,         at::kChar,          at::kUInt16,      at::kShort,         at::kUInt32,
      at::kInt,    at::kUInt64,       at::kLong,          at::kHalf,        at::kBFloat16,      at::kFloat,
      at::kDouble, at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e8m0fnu};
  if (GetParam() != "dcp-hf") {
    types.insert(types.end(), {at::kComplexHalf, at::kComplexDouble, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz});
  }
  as_ranks(3, [&](int) {
    const ShardingSpecPtr rows = chunk_spec(0, placements(3)), columns = chunk_spec(1, placements(3));
    StateDict state, loaded;
    for (const at::ScalarType type : types) {
      const at::Tensor whole = content({5, 4}, type);
      state.insert(c10::toString(type), value(cut(whole, rows)));
      state.insert(c10::str("plain ", type), whole);
      loaded.insert(c10::toString(type), value(blank(whole, columns)));
      loaded.insert(c10::str("plain ", type), raw(at::zeros_like(raw(whole))).view(type));
    }
    checkpoint::save(state, path(), nullptr, as(GetParam()));
    checkpoint::load(loaded, path());
    for (const at::ScalarType type : types) {
      const at::Tensor whole = content({5, 4}, type);
      expect_content(ShardedTensor::of(loaded[c10::toString(type)].toTensor()), whole);
      EXPECT_TRUE(raw(loaded[c10::str("plain ", type)].toTensor()).equal(raw(whole))) << type;
    }
  });
}

TEST_P(CheckpointFormat, HoldsScalarsAndEmptyTensors) {
  as_ranks(2, [&](int) {
    StateDict state = state_of({{"scalar", at::scalar_tensor(2.5, at::kDouble)},
                                {"empty", at::empty({0, 3})},
                                {"sharded", value(ShardedTensor(chunk_spec(0, placements(2)), {0, 4}))}});
    checkpoint::save(state, path(), nullptr, as(GetParam()));
    StateDict loaded = state_of({{"scalar", at::scalar_tensor(0, at::kDouble)},
                                 {"empty", at::empty({0, 3})},
                                 {"sharded", value(ShardedTensor(chunk_spec(1, placements(2)), {0, 4}))}});
    checkpoint::load(loaded, path());
    EXPECT_EQ(loaded["scalar"].toTensor().item<double>(), 2.5);
  });
}

// Six rows in chunks of two: the fourth rank's chunk is empty, and so are those past the end of one row.
TEST_P(CheckpointFormat, HoldsEmptyShardsAndShardsPastTheEnd) {
  for (const std::int64_t rows : {6, 1}) {
    const at::Tensor whole = content({rows, 2}, at::kInt);
    const std::string to = path(c10::str("rows", rows));
    as_ranks(4, [&](int rank) {
      checkpoint::save(state_of({{"w", value(cut(whole, chunk_spec(0, placements(4))))}}), to, nullptr, as(GetParam()));
      StateDict loaded = state_of({{"w", value(blank(whole, chunk_spec(0, placements(4, 2))))}});
      const checkpoint::LoadResult result = checkpoint::load(loaded, to);
      expect_content(ShardedTensor::of(loaded["w"].toTensor()), whole);
      EXPECT_TRUE(rows != 1 || result.bytes_read == (rank == 2 ? 8 : 0)) << result.bytes_read;
    });
  }
}

TEST_P(CheckpointFormat, TakesPlainTensorsOfRankZero) {
  as_ranks(3, [&](int rank) {
    checkpoint::save(state_of({{"w", at::full({4}, rank, at::kLong)}}), path(), nullptr, as(GetParam()));
    StateDict loaded = state_of({{"w", at::full({4}, 9, at::kLong)}});
    checkpoint::load(loaded, path());
    EXPECT_TRUE(loaded["w"].toTensor().equal(at::zeros({4}, at::kLong)));
  });
}

TEST_P(CheckpointFormat, TakesWhatOnlyOneRankHas) {
  as_ranks(3, [&](int rank) {
    StateDict state = state_of({{"all", at::ones({2})}});
    if (rank > 0) state.insert(c10::str("of ", rank), at::full({3}, rank, at::kFloat));
    checkpoint::save(state, path(), nullptr, as(GetParam()));
    StateDict loaded = state_of({{"of 1", at::zeros({3})}, {"of 2", at::zeros({3})}});
    checkpoint::load(loaded, path());
    EXPECT_TRUE(loaded["of 1"].toTensor().equal(at::full({3}, 1.0)));
    EXPECT_TRUE(loaded["of 2"].toTensor().equal(at::full({3}, 2.0)));
  });
}

TEST_P(CheckpointFormat, TakesTensorsThatAreNotContiguous) {
  const at::Tensor whole = content({6, 4}, at::kFloat);
  as_ranks(2, [&](int rank) {
    const at::Tensor local = whole.narrow(0, 3 * rank, 3).t().contiguous().t();
    const ShardMetadata where({3 * rank, 0}, {3, 4}, on(rank));
    const ShardedTensorMetadata metadata{
        {ShardMetadata({0, 0}, {3, 4}, on(0)), ShardMetadata({3, 0}, {3, 4}, on(1))}, {6, 4}, {}};
    const auto sharded = [&](const at::Tensor& tensor) {
      return ShardedTensorBase::init_from_local_shards_and_global_metadata({Shard(tensor, where)}, metadata)
          .as_tensor();
    };
    checkpoint::save(state_of({{"plain", whole.t()}, {"sharded", sharded(local)}}), path(), nullptr, as(GetParam()));
    const at::Tensor plain = at::zeros({6, 4}).t(), part = at::zeros({4, 3}).t();
    StateDict loaded = state_of({{"plain", plain}, {"sharded", sharded(part)}});
    checkpoint::load(loaded, path());
    EXPECT_TRUE(plain.equal(whole.t()));
    EXPECT_TRUE(part.equal(local));
  });
}

TEST_P(CheckpointFormat, HoldsTensorsOfSubGroups) {
  const at::Tensor whole = content({4, 6}, at::kShort);
  as_ranks(4, [&](int rank) {
    const ProcessGroupPtr pair = new_group({1, 3});
    StateDict state = state_of({{"all", at::ones({2})}});
    if (pair->is_member()) state.insert("pair", value(cut(whole, chunk_spec(1, {on(1), on(3)}), pair)));
    checkpoint::save(state, path(), nullptr, as(GetParam()));
    StateDict loaded = state_of({{"all", at::zeros({2})}, {"pair", value(blank(whole, chunk_spec(0, placements(4))))}});
    checkpoint::load(loaded, path());
    expect_content(ShardedTensor::of(loaded["pair"].toTensor()), whole);
    // A sub-group can save and load by itself.
    if (!pair->is_member()) return;
    StateDict own = state_of({{"pair", value(cut(whole, chunk_spec(0, {on(1), on(3)}), pair))}});
    checkpoint::save(own, path("pair"), pair, as(GetParam()));
    StateDict again = state_of({{"pair", value(blank(whole, chunk_spec(1, {on(3), on(1)}), pair))}});
    checkpoint::load(again, path("pair"), pair);
    expect_content(ShardedTensor::of(again["pair"].toTensor()), whole);
    EXPECT_EQ(rank % 2, 1);
  });
}

TEST_P(CheckpointFormat, ReplacesOnlyByForce) {
  const auto state = [](double each) { return state_of({{"w", at::full({2}, each)}}); };
  as_ranks(2, [&](int) {
    checkpoint::SaveOptions options = as(GetParam());
    checkpoint::save(state(1), path(), nullptr, options);
    expect_error([&] { checkpoint::save(state(2), path(), nullptr, options); }, ErrorCode::kExists, "");
    StateDict loaded = state(0);
    checkpoint::load(loaded, path());
    EXPECT_EQ(loaded["w"].toTensor()[0].item<double>(), 1);
    options.force = true;
    checkpoint::save(state(2), path(), nullptr, options);
    checkpoint::load(loaded, path());
    EXPECT_EQ(loaded["w"].toTensor()[0].item<double>(), 2);
  });
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("saved"));
}

TEST_P(CheckpointFormat, FailsOnAllRanksWhereOneFails) {
  as_ranks(3, [&](int rank) {
    StateDict state = state_of({{"w", at::ones({2})}});
    if (rank == 1) state.insert("sparse", at::ones({2, 2}).to_sparse());
    expect_error([&] { checkpoint::save(state, path(), nullptr, as(GetParam())); }, ErrorCode::kUnsupported,
                 "no tensors of this kind", "sparse");
  });
  EXPECT_THAT(names_in(folder_.path()), IsEmpty());
}

// --- Objects --------------------------------------------------------------------------------------------------------

StateDict state_with_objects() {
  c10::impl::GenericDict group(c10::StringType::get(), c10::AnyType::get());
  group.insert("lr", 0.125);
  group.insert("momentum", at::full({2}, 5.0));
  group.insert("betas", std::vector<double>{0.5, 0.25});
  StateDict state = state_of({{"step", 7},
                              {"loss", 0.5},
                              {"done", true},
                              {"name", "run 1"},
                              {"nothing", c10::IValue()},
                              {"sizes", std::vector<std::int64_t>{1, 2, 3}},
                              {"pair", c10::ivalue::Tuple::create({1, "two"})}});
  state.insert("optimizer", group);
  return state;
}

class CheckpointObjects : public Checkpoint, public ::testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Formats, CheckpointObjects, ::testing::Values("dcp", "torch-ranks"),
                         [](const auto& format) { return format.param == "dcp" ? "dcp" : "torch_ranks"; });

TEST_P(CheckpointObjects, ComeBackAsTheyWere) {
  as_ranks(2, [&](int rank) {
    StateDict state = state_with_objects();
    if (rank == 1) state["step"] = 8;  // Rank 0's counts.
    checkpoint::save(state, path(), nullptr, as(GetParam()));
    c10::impl::GenericDict group(c10::StringType::get(), c10::AnyType::get());
    const at::Tensor momentum = at::zeros({2});
    group.insert("lr", 0.0);
    group.insert("momentum", momentum);
    group.insert("betas", c10::IValue());
    StateDict loaded = state_of({{"step", 0}, {"loss", 0}, {"done", 0}, {"name", ""}, {"nothing", 1}});
    for (const char* name : {"sizes", "pair"}) loaded.insert(name, c10::IValue());
    loaded.insert("optimizer", group);
    checkpoint::load(loaded, path());
    EXPECT_EQ(loaded["step"].toInt(), 7);
    EXPECT_EQ(loaded["loss"].toDouble(), 0.5);
    EXPECT_TRUE(loaded["done"].toBool());
    EXPECT_EQ(loaded["name"].toStringRef(), "run 1");
    EXPECT_TRUE(loaded["nothing"].isNone());
    EXPECT_THAT(loaded["sizes"].toIntVector(), ElementsAre(1, 2, 3));
    EXPECT_EQ(loaded["pair"].toTupleRef().elements()[1].toStringRef(), "two");
    EXPECT_EQ(group.at("lr").toDouble(), 0.125);
    EXPECT_THAT(group.at("betas").toDoubleVector(), ElementsAre(0.5, 0.25));
    EXPECT_TRUE(momentum.equal(at::full({2}, 5.0)));
  });
}

TEST_F(Checkpoint, NamesTheObjectsThatAFormatCannotHold) {
  as_ranks(2, [&](int) {
    expect_error(
        [&] {
          checkpoint::save(state_of({{"step", 7}}), path(), nullptr, as("dcp-hf"));
        },
        ErrorCode::kUnsupported, "step");
  });
  EXPECT_THAT(names_in(folder_.path()), IsEmpty());
}

TEST_F(Checkpoint, NamesAValueThatNoFormatHolds) {
  as_ranks(2, [&](int) {
    expect_error(
        [&] {
          checkpoint::save(state_of({{"where", at::Device("cpu")}}), path());
        },
        ErrorCode::kUnsupported, "Device", "where");
  });
}

// --- Saving ---------------------------------------------------------------------------------------------------------

TEST_F(Checkpoint, RefusesMoreDimensionsThanFormatsHave) {
  as_ranks(2, [&](int) {
    const StateDict state = state_of({{"deep", at::zeros(std::vector<std::int64_t>(65, 1))}});
    expect_error([&] { checkpoint::save(state, path()); }, ErrorCode::kUnsupported, "dimensions");
  });
}

TEST_F(Checkpoint, RefusesPlainTensorsOfTwoShapes) {
  as_ranks(3, [&](int rank) {
    const StateDict state = state_of({{"w", at::ones({rank == 2 ? 3 : 2})}});
    expect_error([&] { checkpoint::save(state, path()); }, ErrorCode::kInvalidArgument, "'w' has two shapes", "w");
  });
}

TEST_F(Checkpoint, RefusesATensorThatIsSomethingElseElsewhere) {
  as_ranks(2, [&](int rank) {
    const StateDict state = state_of({{"w", rank == 0 ? c10::IValue(at::ones({2})) : c10::IValue(1)}});
    expect_error([&] { checkpoint::save(state, path()); }, ErrorCode::kInvalidArgument, "contradict", "w");
  });
}

ShardedTensorBase part(const at::Tensor& local, const Sizes& offsets, const ShardedTensorMetadata& metadata, int rank) {
  return ShardedTensorBase::init_from_local_shards_and_global_metadata(
      {Shard(local, ShardMetadata(offsets, local.sizes().vec(), on(rank)))}, metadata);
}

TEST_F(Checkpoint, RefusesShardsThatOverlap) {
  as_ranks(2, [&](int rank) {
    // Each rank's own metadata is sound; together they hold row 2 twice.
    const std::int64_t height = rank == 0 ? 3 : 2, top = rank == 0 ? 0 : 2;
    const ShardedTensorMetadata metadata{
        {ShardMetadata({0, 0}, {top == 0 ? 3 : 2, 2}, on(rank == 0 ? 0 : 1)),
         ShardMetadata({top == 0 ? 3 : 2, 0}, {top == 0 ? 1 : 2, 2}, on(rank == 0 ? 1 : 1))},
        {4, 2},
        {}};
    const StateDict state = state_of({{"w", part(at::ones({height, 2}), {top, 0}, metadata, rank).as_tensor()}});
    expect_error([&] { checkpoint::save(state, path()); }, ErrorCode::kInvalidArgument, "", "w");
  });
}

TEST_F(Checkpoint, RefusesOtherArgumentsOnOtherRanks) {
  as_ranks(2, [&](int rank) {
    expect_error(
        [&] {
          checkpoint::save(state_of({{"w", at::ones({2})}}), path(rank == 0 ? "a" : "b"));
        },
        ErrorCode::kInvalidArgument, "asked to save differently");
  });
  EXPECT_THAT(names_in(folder_.path()), IsEmpty());
}

TEST_F(Checkpoint, RefusesAFolderThatIsNotThere) {
  as_ranks(2, [&](int) {
    expect_error(
        [&] {
          checkpoint::save(state_of({{"w", at::ones({2})}}), path("absent/saved"));
        },
        ErrorCode::kResource, "");
  });
}

TEST_F(Checkpoint, WritesEachRanksShardsIntoItsOwnFile) {
  as_ranks(3, [&](int) {
    checkpoint::save(state_of({{"w", value(cut(content({3, 4}, at::kInt), chunk_spec(0, placements(3))))}}), path(),
                     nullptr, as("dcp"));
  });
  EXPECT_THAT(names_in(path()), ElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"));
}

// Rank 1 has a name more, so that trees are merged; the dict is one object under two names.
TEST_P(CheckpointObjects, KeepOneTensorOfSeveralNames) {
  as_ranks(2, [&](int rank) {
    const at::Tensor whole = content({4, 2}, at::kInt);
    const ShardedTensor shared = cut(whole, chunk_spec(0, placements(2)));
    c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
    dict.insert("w", shared.as_tensor());
    dict.insert("plain", whole);
    StateDict state = state_of({{"a", dict}, {"b", dict}, {"c", value(shared)}, {"d", whole}});
    if (rank == 1) state.insert("e", whole);
    checkpoint::save(state, path(), nullptr, as(GetParam()));
    for (const char* name : {"a.w", "b.w", "c"}) {
      StateDict loaded = state_of({{name, value(blank(whole, chunk_spec(1, placements(2))))}});
      checkpoint::load(loaded, path());
      expect_content(ShardedTensor::of(loaded[name].toTensor()), whole);
    }
    for (const char* name : {"a.plain", "b.plain", "d", "e"}) {
      StateDict loaded = state_of({{name, at::zeros({4, 2}, at::kInt)}});
      checkpoint::load(loaded, path());
      EXPECT_TRUE(loaded[name].toTensor().equal(whole)) << name;
    }
  });
}

TEST_F(Checkpoint, RefusesNamesThatAreOneTensorOnSomeRanksOnly) {
  as_ranks(2, [&](int rank) {
    const ShardingSpecPtr spec = chunk_spec(0, placements(2));
    const ShardedTensor one = sharded_tensor::ones(spec, {4}), two = sharded_tensor::zeros(spec, {4});
    const StateDict state = state_of({{"a", value(one)}, {"b", value(rank == 0 ? one : two)}});
    expect_error([&] { checkpoint::save(state, path()); }, ErrorCode::kInvalidArgument, "two names are one tensor",
                 "b");
  });
}

TEST_F(Checkpoint, FillsOneTensorUnderTwoNames) {
  as_ranks(2, [&](int) {
    const at::Tensor shared = content({4}, at::kInt), filled = at::zeros({4}, at::kInt);
    checkpoint::save(state_of({{"a", shared}, {"b", shared}}), path());
    StateDict loaded = state_of({{"a", filled}, {"b", filled}});
    checkpoint::load(loaded, path());
    EXPECT_TRUE(filled.equal(shared));
  });
}

// --- Loading --------------------------------------------------------------------------------------------------------

TEST_F(Checkpoint, RefusesAnotherShapeOrDtype) {
  as_ranks(2, [&](int rank) {
    checkpoint::save(state_of({{"w", at::ones({2, 3})}}), path());
    const auto load = [&](const at::Tensor& into) {
      StateDict state = state_of({{"w", into}});
      const std::optional<Error> error = error_of([&] { checkpoint::load(state, path()); });
      EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(error->tensor(), "w");
      return std::pair(error->expected(), error->found());
    };
    EXPECT_EQ(load(at::ones({3, 2})), std::pair(std::string("[3, 2]"), std::string("[2, 3]")));
    // One rank's mistake is every rank's error, and changes no tensor.
    const at::Tensor own = at::zeros({2, 3}, rank == 1 ? at::kDouble : at::kFloat);
    EXPECT_EQ(load(own), std::pair(std::string("float64"), std::string("float32")));
    EXPECT_EQ(own.sum().item<double>(), 0);
  });
}

TEST_F(Checkpoint, RefusesNamesThatItLacks) {
  as_ranks(2, [&](int) {
    checkpoint::save(state_of({{"w", at::ones({2})}}), path());
    const at::Tensor present = at::zeros({2}), absent = at::zeros({2});
    StateDict state = state_of({{"w", present}, {"x", absent}, {"step", 3}});
    expect_error([&] { checkpoint::load(state, path()); }, ErrorCode::kNotFound, "lacks 'x' and 1 more", "x");
    EXPECT_THAT(checkpoint::load(state, path(), nullptr, {.strict = false}).missing, ElementsAre("x", "step"));
    EXPECT_EQ(present.sum().item<double>(), 2);
    EXPECT_EQ(absent.sum().item<double>(), 0);
    EXPECT_EQ(state["step"].toInt(), 3);
  });
}

TEST_F(Checkpoint, IsNotFoundWhereNothingIs) {
  as_ranks(2, [&](int) {
    StateDict state = state_of({{"w", at::ones({2})}});
    expect_error([&] { checkpoint::load(state, path("absent")); }, ErrorCode::kNotFound, "");
  });
}

TEST_F(Checkpoint, IsForMembersOnly) {
  as_ranks(3, [&](int rank) {
    const ProcessGroupPtr pair = new_group({0, 2});
    if (rank != 1) return;
    expect_error(
        [&] {
          checkpoint::save(state_of({{"w", at::ones({2})}}), path(), pair);
        },
        ErrorCode::kInvalidArgument, "no member");
  });
}

/// Bytes that this process has read from files.
std::int64_t process_bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string word;
  std::int64_t bytes = 0;
  io >> word >> bytes;
  return bytes;
}

TEST_F(Checkpoint, ReadsNoMoreThanEachRanksShare) {
  constexpr std::int64_t kSide = 1024, kBytes = kSide * kSide * 4;
  const at::Tensor whole = content({kSide, kSide}, at::kFloat);
  as_ranks(4, [&](int) {
    checkpoint::save(state_of({{"w", value(cut(whole, chunk_spec(0, placements(4))))}, {"other", whole}}), path(),
                     nullptr, as("dcp"));
  });
  const std::int64_t before = process_bytes_read();
  as_ranks(4, [&](int) {
    StateDict state = state_of({{"w", value(blank(whole, grid_spec(kSide, kSide, 2, 2, 4)))}});
    EXPECT_EQ(checkpoint::load(state, path()).bytes_read, kBytes / 4);
    expect_content(ShardedTensor::of(state["w"].toTensor()), whole);
  });
  // Runs of half a row are read together with what lies between them: at most twice the share.
  EXPECT_LT(process_bytes_read() - before, 2 * kBytes + (1 << 20));
}

TEST_F(Checkpoint, ReadsOfOneTensorAndItsRowsNothingElse) {
  constexpr std::int64_t kSide = 1024, kBytes = kSide * kSide * 4;
  const at::Tensor whole = content({kSide, kSide}, at::kFloat);
  as_ranks(1, [&](int) {
    checkpoint::save(state_of({{"a", whole}, {"b", whole}, {"c", whole}}), path(), nullptr, as("dcp"));
    const std::int64_t before = process_bytes_read();
    StateDict state = state_of({{"b", at::zeros_like(whole)}});
    EXPECT_EQ(checkpoint::load(state, path()).bytes_read, kBytes);
    EXPECT_LT(process_bytes_read() - before, kBytes + (256 << 10));
  });
}

TEST_F(Checkpoint, WorksWithLittleMemory) {
  const at::Tensor whole = content({700, 900}, at::kFloat);
  as_ranks(2, [&](int) {
    checkpoint::SaveOptions options = as("dcp");
    options.max_memory_bytes = 1 << 20;
    checkpoint::save(state_of({{"w", value(cut(whole, chunk_spec(0, placements(2))))}}), path(), nullptr, options);
    StateDict state = state_of({{"w", value(blank(whole, chunk_spec(1, placements(2))))}});
    checkpoint::load(state, path(), nullptr, {.threads = 1, .max_memory_bytes = 1 << 20});
    expect_content(ShardedTensor::of(state["w"].toTensor()), whole);
  });
}

TEST(Dtypes, AreOneToOne) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype == DType::kFloat6E2m3fn || dtype == DType::kFloat6E3m2fn || dtype == DType::kBcomplex32) {
      EXPECT_EQ(error_of([&] { scalar_type_of(dtype); })->code(), ErrorCode::kUnsupported);
      continue;
    }
    EXPECT_EQ(dtype_of(scalar_type_of(dtype)), dtype) << dtype_name(dtype);
    EXPECT_EQ(static_cast<int>(c10::elementSize(scalar_type_of(dtype))), dtype_bits(dtype) / 8) << dtype_name(dtype);
  }
}

}  // namespace
}  // namespace shard

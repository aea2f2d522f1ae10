// Checkpoints of sharded state, with ranks as threads: their content, saved by some ranks and loaded by others under
// different shardings.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "shardtorch/sharded_tensor/factories.h"
#include "tests/shardtorch/checkpoint_fixture.h"

namespace shard::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckpointFormat : public Checkpoint, public ::testing::WithParamInterface<std::string> {};

INSTANTIATE_TEST_SUITE_P(Formats, CheckpointFormat, ::testing::Values("dcp", "dcp-hf", "torch-ranks"),
                         [](const auto& format) {
                           std::string name = format.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

/// Ways to shard a matrix over some ranks, one box per rank.
std::vector<ShardingSpecPtr> single_box_specs(const at::Tensor& whole, int ranks) {
  std::vector<ShardingSpecPtr> specs{chunk_spec(0, placements(ranks)), chunk_spec(1, placements(ranks)),
                                     chunk_spec(-1, placements(ranks, 1))};
  const int rows = ranks == 4 ? 2 : 1;
  specs.push_back(grid_spec(whole.size(0), whole.size(1), rows, ranks / rows, ranks));
  return specs;
}

/// The same ways, and others with several boxes per rank.
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
      loaded.insert(c10::str("plain ", type), checkpoint::as_raw(at::zeros_like(checkpoint::as_raw(whole))).view(type));
    }
    checkpoint::save(state, path(), nullptr, as(GetParam()));
    checkpoint::load(loaded, path());
    for (const at::ScalarType type : types) {
      const at::Tensor whole = content({5, 4}, type);
      expect_content(ShardedTensor::of(loaded[c10::toString(type)].toTensor()), whole);
      EXPECT_TRUE(checkpoint::as_raw(loaded[c10::str("plain ", type)].toTensor()).equal(checkpoint::as_raw(whole)))
          << type;
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
    expect_error(ErrorCode::kExists, "", [&] { checkpoint::save(state(2), path(), nullptr, options); });
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

TEST_P(CheckpointFormat, RefusesNamesThatAreNoUtf8) {
  as_ranks(2, [&](int rank) {
    const StateDict state = state_of({{rank == 1 ? "\xff" : "w", at::ones({2})}});
    expect_error(ErrorCode::kUnsupported, "not UTF-8",
                 [&] { checkpoint::save(state, path(), nullptr, as(GetParam())); });
  });
  EXPECT_THAT(names_in(folder_.path()), IsEmpty());
}

/// During its lifetime, files of this process cannot grow past `bytes`: further writes fail, as on a full disk.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFiles() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

// Rank 2 has three times as many rows as the others.
TEST_P(CheckpointFormat, LeavesNothingWhereOneRankCannotWrite) {
  const SmallFiles limit(64 << 10);
  const ShardingSpecPtr boxes =
      enumerable_spec({{{0, 0}, {64, 64}, on(0)}, {{64, 0}, {64, 64}, on(1)}, {{128, 0}, {192, 64}, on(2)}});
  as_ranks(3, [&](int) {
    const StateDict state = state_of({{"w", value(sharded_tensor::ones(boxes, {320, 64}, {.dtype = at::kDouble}))}});
    expect_error(ErrorCode::kResource, "", [&] { checkpoint::save(state, path(), nullptr, as(GetParam())); });
  });
  EXPECT_THAT(names_in(folder_.path()), IsEmpty());
}

TEST_P(CheckpointFormat, FailsOnAllRanksWhereOneFails) {
  as_ranks(3, [&](int rank) {
    StateDict state = state_of({{"w", at::ones({2})}});
    if (rank == 1) state.insert("sparse", at::ones({2, 2}).to_sparse());
    expect_error_of("sparse", ErrorCode::kUnsupported, "cannot store this kind of tensor",
                    [&] { checkpoint::save(state, path(), nullptr, as(GetParam())); });
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
    expect_error(ErrorCode::kUnsupported, "step", [&] {
      checkpoint::save(state_of({{"step", 7}}), path(), nullptr, as("dcp-hf"));
    });
  });
  EXPECT_THAT(names_in(folder_.path()), IsEmpty());
}

TEST_F(Checkpoint, NamesAValueThatNoFormatHolds) {
  as_ranks(2, [&](int) {
    expect_error_of("where", ErrorCode::kUnsupported, "Device", [&] {
      checkpoint::save(state_of({{"where", at::Device("cpu")}}), path());
    });
  });
}

TEST_P(CheckpointFormat, OfAnEmptyStateIsACheckpointToo) {
  as_ranks(2, [&](int) {
    checkpoint::save(StateDict(), path(), nullptr, as(GetParam()));
    StateDict nothing;
    EXPECT_EQ(checkpoint::load(nothing, path()).bytes_read, 0);
  });
}

// Rank 1 has one more name, so that trees are merged. The dict is one object with two names.
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

}  // namespace
}  // namespace shard::test

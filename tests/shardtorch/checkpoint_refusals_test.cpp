// Saving and loading of checkpoints, with ranks as threads: refusals, destinations of bytes, and the number of bytes
// that a rank reads.
#include <fstream>

#include "shardtorch/checkpoint/async_save.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "tests/shardtorch/checkpoint_fixture.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// --- Saving ---------------------------------------------------------------------------------------------------------

TEST_F(Checkpoint, RefusesMoreDimensionsThanFormatsHave) {
  as_ranks(2, [&](int) {
    const StateDict state = state_of({{"deep", at::zeros(std::vector<std::int64_t>(65, 1))}});
    expect_error(ErrorCode::kUnsupported, "dimensions", [&] { checkpoint::save(state, path()); });
  });
}

TEST_F(Checkpoint, RefusesPlainTensorsOfTwoShapes) {
  as_ranks(3, [&](int rank) {
    const StateDict state = state_of({{"w", at::ones({rank == 2 ? 3 : 2})}});
    expect_error_of("w", ErrorCode::kInvalidArgument, "'w' has two shapes", [&] { checkpoint::save(state, path()); });
  });
}

TEST_F(Checkpoint, RefusesPlainTensorsOfTwoDtypes) {
  as_ranks(2, [&](int rank) {
    const StateDict state = state_of({{"w", at::ones({2}, rank == 0 ? at::kFloat : at::kInt)}});
    expect_error_of("w", ErrorCode::kInvalidArgument, "'w' has two dtypes", [&] { checkpoint::save(state, path()); });
  });
}

TEST_F(Checkpoint, RefusesListsOfTensorsOfTwoLengths) {
  as_ranks(2, [&](int rank) {
    const std::vector<at::Tensor> list(static_cast<std::size_t>(2 - rank), at::ones({2}));
    expect_error_of("l", ErrorCode::kInvalidArgument, "contradict", [&] {
      checkpoint::save(state_of({{"l", list}}), path());
    });
  });
}

TEST_F(Checkpoint, RefusesATensorThatIsSomethingElseElsewhere) {
  as_ranks(2, [&](int rank) {
    const StateDict state = state_of({{"w", rank == 0 ? c10::IValue(at::ones({2})) : c10::IValue(1)}});
    expect_error_of("w", ErrorCode::kInvalidArgument, "contradict", [&] { checkpoint::save(state, path()); });
  });
}

ShardedTensorBase part(const at::Tensor& local, const Sizes& offsets, const ShardedTensorMetadata& metadata, int rank) {
  return ShardedTensorBase::init_from_local_shards_and_global_metadata(
      {Shard(local, ShardMetadata(offsets, local.sizes().vec(), on(rank)))}, metadata);
}

TEST_F(Checkpoint, RefusesShardsThatOverlap) {
  as_ranks(2, [&](int rank) {
    // Each rank's own metadata is valid; together they have row 2 twice.
    const std::int64_t height = rank == 0 ? 3 : 2, top = rank == 0 ? 0 : 2;
    const ShardedTensorMetadata metadata{
        {ShardMetadata({0, 0}, {top == 0 ? 3 : 2, 2}, on(rank == 0 ? 0 : 1)),
         ShardMetadata({top == 0 ? 3 : 2, 0}, {top == 0 ? 1 : 2, 2}, on(rank == 0 ? 1 : 1))},
        {4, 2},
        {}};
    const StateDict state = state_of({{"w", part(at::ones({height, 2}), {top, 0}, metadata, rank).as_tensor()}});
    expect_error_of("w", ErrorCode::kInvalidArgument, "", [&] { checkpoint::save(state, path()); });
  });
}

TEST_F(Checkpoint, RefusesLocalTensorsThatTheirMetadataDoesNotDescribe) {
  const ShardedTensorMetadata metadata{{ShardMetadata({0}, {4}, on(0))}, {4}, {}};
  as_ranks(2, [&](int rank) {
    const at::Tensor local = at::ones({4});
    StateDict state;
    if (rank == 1) state.insert("w", part(local, {0}, metadata, 0).as_tensor());
    local.resize_({2});
    expect_error_of("w", ErrorCode::kInvalidArgument, "does not match its metadata",
                    [&] { checkpoint::save(state, path()); });
    if (rank == 1) *state.find("w") = part(at::ones({4}, at::kByte), {0}, metadata, 0).as_tensor();
    expect_error_of("w", ErrorCode::kInvalidArgument, "does not match its metadata",
                    [&] { checkpoint::save(state, path()); });
  });
}

TEST_F(Checkpoint, RefusesOtherArgumentsOnOtherRanks) {
  as_ranks(2, [&](int rank) {
    expect_error(ErrorCode::kInvalidArgument, "called save with different options", [&] {
      checkpoint::save(state_of({{"w", at::ones({2})}}), path(rank == 0 ? "a" : "b"));
    });
  });
  EXPECT_THAT(names_in(folder_.path()), IsEmpty());
}

TEST_F(Checkpoint, RefusesAFolderThatIsNotThere) {
  as_ranks(2, [&](int) {
    expect_error(ErrorCode::kResource, "", [&] {
      checkpoint::save(state_of({{"w", at::ones({2})}}), path("absent/saved"));
    });
  });
}

TEST_F(Checkpoint, WritesEachRanksShardsIntoItsOwnFile) {
  as_ranks(3, [&](int) {
    checkpoint::save(state_of({{"w", value(cut(content({3, 4}, at::kInt), chunk_spec(0, placements(3))))}}), path(),
                     nullptr, as("dcp"));
  });
  EXPECT_THAT(names_in(path()), ElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"));
}

TEST_F(Checkpoint, RefusesNamesThatAreOneTensorOnSomeRanksOnly) {
  as_ranks(2, [&](int rank) {
    const ShardingSpecPtr spec = chunk_spec(0, placements(2));
    const ShardedTensor one = sharded_tensor::ones(spec, {4}), two = sharded_tensor::zeros(spec, {4});
    const StateDict state = state_of({{"a", value(one)}, {"b", value(rank == 0 ? one : two)}});
    expect_error_of("b", ErrorCode::kInvalidArgument, "two names share a tensor",
                    [&] { checkpoint::save(state, path()); });
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
      const Error error = error_of([&] { checkpoint::load(state, path()); });
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(error.tensor(), "w");
      return std::pair(error.expected(), error.found());
    };
    EXPECT_EQ(load(at::ones({3, 2})), std::pair(std::string("[3, 2]"), std::string("[2, 3]")));
    // One rank's mistake is every rank's error, and changes no tensor.
    const at::Tensor own = at::zeros({2, 3}, rank == 1 ? at::kDouble : at::kFloat);
    EXPECT_EQ(load(own), std::pair(std::string("float64"), std::string("float32")));
    EXPECT_EQ(own.sum().item<double>(), 0);
  });
}

TEST_F(Checkpoint, RefusesTensorsThatCannotBeFilled) {
  as_ranks(2, [&](int rank) {
    const at::Tensor ones = at::ones({2, 3}), good = at::zeros({2, 3});
    checkpoint::save(state_of({{"v", ones}, {"w", ones}}), path());
    const auto expect_refused = [&](ErrorCode code, const at::Tensor& into) {
      StateDict state = state_of({{"v", good}, {"w", rank == 1 ? into : at::zeros({2, 3})}});
      expect_error_of("w", code, "", [&] { checkpoint::load(state, path()); });
      EXPECT_EQ(good.sum().item<double>(), 0);
    };
    expect_refused(ErrorCode::kUnsupported, at::zeros({2, 3}).to_sparse());
    expect_refused(ErrorCode::kUnsupported, at::empty({2, 3}, at::kMeta));
    expect_refused(ErrorCode::kInvalidArgument, at::zeros({1, 3}).expand({2, 3}));
  });
}

TEST_F(Checkpoint, RefusesLocalTensorsOfAnotherDtypeThanTheWhole) {
  as_ranks(1, [&](int) {
    checkpoint::save(state_of({{"w", at::ones({4})}}), path());
    const ShardMetadata whole({0}, {4}, on(0));
    const auto base = ShardedTensorBase::init_from_local_shards_and_global_metadata(
        {Shard(at::zeros({4}, at::kByte), whole)}, {{whole}, {4}, {}});
    StateDict state = state_of({{"w", base.as_tensor()}});
    expect_error_of("w", ErrorCode::kInvalidArgument, "does not match its metadata",
                    [&] { checkpoint::load(state, path()); });
  });
}

TEST_F(Checkpoint, ATensorIsNoObject) {
  for (const std::string format : {"dcp", "torch-ranks"}) {
    as_ranks(2, [&](int) {
      checkpoint::save(state_of({{"w", at::ones({2})}}), path(format), nullptr, as(format));
      StateDict state = state_of({{"w", 3}});
      expect_error_of("w", ErrorCode::kInvalidArgument, "'w' is a tensor in the checkpoint",
                      [&] { checkpoint::load(state, path(format), nullptr, {.strict = false}); });
    });
  }
}

TEST_F(Checkpoint, RefusesNamesThatItLacks) {
  as_ranks(2, [&](int) {
    checkpoint::save(state_of({{"w", at::ones({2})}}), path());
    const at::Tensor present = at::zeros({2}), absent = at::zeros({2});
    StateDict state = state_of({{"w", present}, {"x", absent}, {"step", 3}});
    expect_error_of("x", ErrorCode::kNotFound, "lacks 'x' and 1 more", [&] { checkpoint::load(state, path()); });
    EXPECT_THAT(checkpoint::load(state, path(), nullptr, {.strict = false}).missing, ElementsAre("x", "step"));
    EXPECT_EQ(present.sum().item<double>(), 2);
    EXPECT_EQ(absent.sum().item<double>(), 0);
    EXPECT_EQ(state["step"].toInt(), 3);
  });
}

TEST_F(Checkpoint, IsNotFoundWhereNothingIs) {
  as_ranks(2, [&](int) {
    StateDict state = state_of({{"w", at::ones({2})}});
    expect_error(ErrorCode::kNotFound, "", [&] { checkpoint::load(state, path("absent")); });
  });
}

TEST_F(Checkpoint, IsForMembersOnly) {
  as_ranks(3, [&](int rank) {
    const ProcessGroupPtr pair = new_group({0, 2});
    if (rank != 1) return;
    StateDict state = state_of({{"w", at::ones({2})}});
    const char* const text = "this process is not a member of the group group-1";
    SHARD_EXPECT_THROW(checkpoint::save(state, path(), pair), c10::ValueError, text);
    SHARD_EXPECT_THROW(checkpoint::load(state, path(), pair), c10::ValueError, text);
    SHARD_EXPECT_THROW(static_cast<void>(checkpoint::async_save(state, path(), pair)), c10::ValueError, text);
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
    const std::int64_t bytes = checkpoint::load(state, path()).bytes_read;
    EXPECT_GE(bytes, kBytes / 4);
    EXPECT_LE(bytes, kBytes / 2) << "half rows are read with what lies between them";
    expect_content(ShardedTensor::of(state["w"].toTensor()), whole);
  });
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

}  // namespace
}  // namespace shard::test

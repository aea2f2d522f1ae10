// A job of N ranks does the same as one process: the same bytes, or nothing. Ranks are threads here.
#include <gtest/gtest.h>

#include <optional>

#include "libshard/core/error.h"
#include "libshard/io/local_disk.h"
#include "libshard/ranks/collective_step.h"
#include "libshard/ranks/thread_group.h"
#include "tests/support/content.h"

namespace shard {
namespace {

using testing::Content;
using testing::content_reader;
using testing::open_checkpoint;
using testing::random_content;
using testing::random_tensor;
using testing::write_checkpoint;

constexpr DType kDtypes[] = {DType::kUint8, DType::kBfloat16, DType::kFloat32, DType::kInt64};

Content content_of(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Content content = random_content(random, 6, 11, kDtypes);
  content["large"] = random_tensor(random, DType::kFloat32, {600, 1025});  // Several tiles.
  content["scalar"] = random_tensor(random, DType::kInt64, {});
  return content;
}

MeshLayout mesh_layout() {
  MeshLayout layout;
  layout.mesh = {{"dp", 2}, {"tp", 2}};
  layout.rules.push_back({"**", {{}, {Placement::kShard, 1, 1}}, {}});
  layout.matching = match_first_rule;
  return layout;
}

/// Paths and bytes of all files below /d/NAME.
std::map<std::string, std::vector<std::byte>> files_of(const MemoryState& state, const LocalDisk& fs,
                                                       const std::string& folder) {
  std::map<std::string, std::vector<std::byte>> files;
  for (const std::string& path : state.paths()) {
    if (path.starts_with(folder) && fs.status(path).kind == FileKind::kFile) {
      files[path.substr(folder.size())] = state.content(path);
    }
  }
  return files;
}

struct Case {
  std::string name, from, to;
  Layout layout;
  bool single_file = false;
};

std::vector<Case> cases() {
  return {
      {"GatherToOneSafetensors", "dcp", "safetensors", WholeLayout{}, true},
      {"GatherToFilesOfSafetensors", "dcp", "safetensors", SizeLayout{1 << 20}},
      {"GatherToOneTorchFile", "dcp", "torch", WholeLayout{}, true},
      {"SplitIntoDcp", "safetensors", "dcp", RanksLayout{3, 0}},
      {"ReshardDcpOverAMesh", "dcp", "dcp", mesh_layout()},
      {"SplitIntoTorchRanks", "safetensors", "torch-ranks", RanksLayout{3, 0}},
      {"SplitIntoDcpHf", "safetensors", "dcp-hf", RanksLayout{3, 0}},
  };
}

class Ranks : public ::testing::TestWithParam<Case> {
 protected:
  Ranks() : state_(std::make_shared<MemoryState>()), fs_(make_memory_disk(state_)) {
    fs_->make_folder("/d");
    const Layout layout = GetParam().from == "dcp" ? Layout(RanksLayout{4, 0}) : Layout(WholeLayout{});
    write_checkpoint(*fs_, *content_reader(content_of(7)),
                     {.format = GetParam().from, .destination = "/d/source", .layout = layout});
  }

  void clear() { fs_->remove_all("/d/out"); }

  /// Runs the case into /d/out, which is empty, by `ranks` threads. \returns each rank's error.
  std::vector<std::optional<Error>> run(int ranks) {
    std::vector<std::optional<Error>> failures(static_cast<std::size_t>(ranks));
    run_as_threads(ranks, [&](Group& group) {
      group.set_timeout(std::chrono::seconds(120));
      try {
        std::unique_ptr<Reader> reader;
        collective_step(group, {}, [&](std::stop_token) { reader = open_checkpoint(*fs_, "/d/source"); });
        write_checkpoint(*fs_, group, *reader,
                         {.format = GetParam().to,
                          .destination = "/d/out",
                          .layout = GetParam().layout,
                          .single_file = GetParam().single_file,
                          .threads = 2,
                          .max_memory_bytes = 1 << 20});
      } catch (const Error& error) {
        failures[static_cast<std::size_t>(group.rank())].emplace(error);
      }
    });
    return failures;
  }

  std::map<std::string, std::vector<std::byte>> written() const { return files_of(*state_, *fs_, "/d/out"); }

  std::shared_ptr<MemoryState> state_;
  std::unique_ptr<LocalDisk> fs_;
};

TEST_P(Ranks, WriteTheBytesOfOneProcess) {
  run(1);
  const auto alone = written();
  ASSERT_FALSE(alone.empty());
  for (const int ranks : {2, 3, 4, 8}) {
    clear();
    for (const std::optional<Error>& failure : run(ranks)) ASSERT_FALSE(failure) << failure->what();
    EXPECT_EQ(written(), alone) << ranks << " ranks";
  }
  EXPECT_EQ(state_->open_files(), 0);
}

TEST_P(Ranks, FailTogetherAndLeaveNothingWhenACallFails) {
  run(1);
  const auto alone = written();
  clear();
  const std::int64_t before = state_->calls();
  run(3);
  const std::int64_t calls = state_->calls() - before;
  for (std::int64_t call = 0; call < calls; call += 1 + calls / 60) {
    clear();
    state_->fail_at(state_->calls() + call);
    const std::vector<std::optional<Error>> failures = run(3);
    state_->fail_at(-1);
    for (std::size_t rank = 1; rank < failures.size(); ++rank) {
      ASSERT_EQ(failures[rank].has_value(), failures[0].has_value()) << "call " << call;
      if (!failures[0]) continue;
      EXPECT_EQ(failures[rank]->code(), failures[0]->code()) << "call " << call;
    }
    const auto left = written();
    EXPECT_TRUE(failures[0] ? left.empty() : left == alone) << "call " << call;
    EXPECT_EQ(state_->open_files(), 0) << "call " << call;
    if (HasFailure()) return;
  }
}

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

INSTANTIATE_TEST_SUITE_P(Formats, Ranks, ::testing::ValuesIn(cases()), [](const auto& one) { return one.param.name; });

TEST(RanksThatDiffer, AreRefusedByName) {
  auto state = std::make_shared<MemoryState>();
  const std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
  fs->make_folder("/d");
  write_checkpoint(*fs, *content_reader(content_of(7)), {.format = "safetensors", .destination = "/d/source"});
  std::vector<std::optional<Error>> failures(3);
  run_as_threads(3, [&](Group& group) {
    try {
      const std::int64_t cuts = group.rank() == 2 ? 5 : 4;
      write_checkpoint(*fs, group, *open_checkpoint(*fs, "/d/source"),
                       {.format = "dcp", .destination = "/d/out", .layout = RanksLayout{cuts, 0}});
    } catch (const Error& error) {
      failures[static_cast<std::size_t>(group.rank())].emplace(error);
    }
  });
  for (const std::optional<Error>& failure : failures) {
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(failure->rank(), 2);
  }
  EXPECT_EQ(fs->status("/d/out").kind, FileKind::kAbsent);
}

}  // namespace
}  // namespace shard

// Jobs of ranks that have a disk each: what one process would write, file by file, whoever reads and writes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/detect.h"
#include "libshard/io/local_output.h"
#include "libshard/job/group_store.h"
#include "libshard/ranks/collective_step.h"
#include "libshard/ranks/thread_group.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"

namespace shard::testing {
namespace {

using test::error_of;
using Files = std::map<std::string, std::vector<std::byte>>;

constexpr DType kDtypes[] = {DType::kFloat32, DType::kUint8, DType::kInt64, DType::kBfloat16};

struct Disk {
  Disk() { disk->make_folder("/d"); }
  Files files_below(const std::string& folder) const {
    Files files;
    for (const std::string& path : state->paths()) {
      if (!path.starts_with(folder + "/") || disk->status(path).kind != FileKind::kFile) continue;
      files[path.substr(folder.size() + 1)] = state->content(path);
    }
    return files;
  }
  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> disk = make_memory_disk(state);
};

/// A format, and how its files are cut.
struct Kind {
  const char* format;
  bool in_files;  ///< Whole tensors in several files, else pieces of ranks.
  Layout layout(int parts) const { return in_files ? Layout(ShardsLayout{parts}) : Layout(RanksLayout{parts}); }
};

constexpr Kind kKinds[] = {
    {"safetensors", true}, {"torch", true}, {"dcp", false}, {"dcp-hf", false}, {"torch-ranks", false}};

Content content_of(int seed, bool is_large) {
  std::mt19937_64 random(static_cast<std::uint64_t>(seed));
  Content content = random_content(random, 20, 9, kDtypes);
  if (is_large) {
    content["rows"] = random_tensor(random, DType::kFloat32, {1500, 512});
    content["wide"] = random_tensor(random, DType::kInt64, {7, 40'000});
  }
  return content;
}

/// Ranks of which each has a disk.
class Nodes {
 public:
  explicit Nodes(int ranks) : disks(static_cast<std::size_t>(ranks)) {}
  int ranks() const { return static_cast<int>(disks.size()); }

  /// Writes a checkpoint by one process, and gives each file to one disk: to its rank's, where it is one's.
  void spread(const Content& content, const Kind& kind, int parts) {
    write_checkpoint(*whole.disk, *content_reader(content),
                     {.format = kind.format, .destination = "/d/src", .layout = kind.layout(parts)});
    source_format = kind.format;
    const auto reader = open_checkpoint(*whole.disk, "/d/src", kind.format);
    std::map<std::string, int> rank_of;
    for (const File& file : reader->catalog().files) rank_of[file.path] = file.rank;
    std::size_t next = disks.size();
    for (const auto& [path, bytes] : whole.files_below("/d/src")) {
      const auto rank = rank_of.find(path);
      const bool is_ranks = rank != rank_of.end() && rank->second >= 0;
      const std::size_t holder = is_ranks ? static_cast<std::size_t>(rank->second) : --next;
      disks[holder % disks.size()].state->put("/d/src/" + path, bytes);
      if (next == 0) next = disks.size();
    }
  }

  struct How {
    bool own_input = true, own_output = true;
    int threads = 2;
    std::int64_t max_memory_bytes = 64 << 20;
    bool force = false, dry_run = false;
  };

  /// Runs the job of one rank. \returns rank 0's result.
  CopyResult copy(Group& group, const Kind& to, int parts, const How& how) {
    Disk& own = disks[static_cast<std::size_t>(group.rank())];
    const SourceStore& shared = *whole.disk;
    GroupStore store(*own.disk, group.rank());
    std::unique_ptr<Reader> reader;
    std::unique_ptr<OutputStore> output;
    collective_step(group, {.traffic = how.own_input ? &store : nullptr}, [&](const std::stop_token&) {
      const Source source{how.own_input ? &store : &shared, {"/d/src"}};
      const Format& format = detect_format(source);
      EXPECT_EQ(format.traits.name, source_format);
      reader = format.open(source, {});
      reader->load_objects();
      output = local_output(how.own_output ? *own.disk : *whole.disk, "/d/dst", {}, {.force = how.force});
    });
    WriteCheckpoint what{.format = to.format, .destination = "/d/dst", .layout = to.layout(parts)};
    what.threads = how.threads;
    what.max_memory_bytes = how.max_memory_bytes;
    what.parts = how.own_input ? &store : nullptr;
    what.own_places = how.own_output;
    what.dry_run = how.dry_run;
    return write_checkpoint(*output, group, *reader, what);
  }
  void run(const Kind& to, int parts, const How& how) {
    run_as_threads(ranks(), [&](Group& group) { copy(group, to, parts, how); });
  }

  /// What all disks hold of DST; a file that two hold is a failure.
  Files written(bool own_output) const {
    if (!own_output) return whole.files_below("/d/dst");
    Files all;
    for (const Disk& each : disks) {
      for (auto& [path, bytes] : each.files_below("/d/dst")) {
        EXPECT_TRUE(all.emplace(path, bytes).second) << path << " is written twice";
      }
    }
    return all;
  }
  /// What one process writes.
  Files expected(const Kind& to, int parts) const {
    Disk alone;
    for (const auto& [path, bytes] : whole.files_below("/d/src")) alone.state->put("/d/src/" + path, bytes);
    const auto reader = open_checkpoint(*alone.disk, "/d/src", source_format);
    reader->load_objects();
    write_checkpoint(*alone.disk, *reader, {.format = to.format, .destination = "/d/dst", .layout = to.layout(parts)});
    return alone.files_below("/d/dst");
  }

  std::vector<Disk> disks;
  Disk whole;  ///< The source as one process has it.
  std::string source_format;
};

class NodeLocal : public ::testing::TestWithParam<std::tuple<Kind, int>> {};

TEST_P(NodeLocal, EveryFormatIsWrittenAsByOneProcess) {
  const auto& [from, ranks] = GetParam();
  for (const Kind& to : kKinds) {
    SCOPED_TRACE(to.format);
    Nodes nodes(ranks);
    nodes.spread(content_of(ranks, false), from, ranks);
    nodes.run(to, ranks + 1, {});
    EXPECT_EQ(nodes.written(true), nodes.expected(to, ranks + 1));
  }
}

TEST_P(NodeLocal, EitherSideMayBeSharedByAll) {
  const auto& [from, ranks] = GetParam();
  const Kind to{"dcp", false};
  for (const bool own_output : {false, true}) {
    Nodes nodes(ranks);
    nodes.spread(content_of(ranks, true), from, ranks);
    nodes.run(to, 3, {.own_input = !own_output, .own_output = own_output});
    EXPECT_EQ(nodes.written(own_output), nodes.expected(to, 3));
  }
}

TEST_P(NodeLocal, LargeTensorsTravelInManyRoundsOfLittleMemory) {
  const auto& [from, ranks] = GetParam();
  const Kind to{"torch-ranks", false};
  Nodes nodes(ranks);
  nodes.spread(content_of(ranks, true), from, ranks);
  nodes.run(to, 2 * ranks, {.max_memory_bytes = 8 << 20});
  EXPECT_EQ(nodes.written(true), nodes.expected(to, 2 * ranks));
}

INSTANTIATE_TEST_SUITE_P(Sources, NodeLocal,
                         ::testing::Combine(::testing::ValuesIn(kKinds), ::testing::Values(2, 3, 4)),
                         [](const auto& each) {
                           std::string name(std::get<0>(each.param).format);
                           std::ranges::replace(name, '-', '_');
                           return name + "_of_" + std::to_string(std::get<1>(each.param));
                         });

}  // namespace
}  // namespace shard::testing

// Jobs of ranks with local disks: the same output as one process, file by file, for any readers and writers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>

#include "formats/detect.h"
#include "libshard/io/local_output.h"
#include "libshard/job/group_store.h"
#include "libshard/ranks/collective_step.h"
#include "libshard/ranks/thread_group.h"
#include "tests/support/breaking_group.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_files.h"

namespace shard::testing {
namespace {

using test::error_of;
constexpr DType kDtypes[] = {DType::kFloat32, DType::kUint8, DType::kInt64, DType::kBfloat16};

/// A format, and how its files are cut.
struct Kind {
  const char* format;
  bool in_files;  ///< Whole tensors in several files, otherwise pieces of ranks.
  Layout layout(int parts) const { return in_files ? Layout(ShardsLayout{parts}) : Layout(RanksLayout{parts}); }
};

/// All formats that this build has.
std::vector<Kind> kinds() {
  std::vector<Kind> all{
      {"safetensors", true}, {"torch", true}, {"dcp", false}, {"dcp-hf", false}, {"torch-ranks", false}};
  const std::vector<std::string> names = format_names();
  if (std::ranges::find(names, "hdf5") != names.end()) all.push_back({"hdf5", false});
  return all;
}

Content content_of(int seed, bool is_large) {
  std::mt19937_64 random(static_cast<std::uint64_t>(seed));
  Content content = random_content(random, 20, 9, kDtypes);
  if (is_large) {
    content["rows"] = random_tensor(random, DType::kFloat32, {1500, 512});
    content["wide"] = random_tensor(random, DType::kInt64, {7, 40'000});
  }
  return content;
}

/// Ranks of which each has a disk, or shares it with its neighbours.
class Nodes {
 public:
  explicit Nodes(int ranks, int nodes = 0)
      : disks(static_cast<std::size_t>(nodes == 0 ? ranks : nodes)), ranks_(ranks) {}
  int ranks() const { return ranks_; }
  Disk& disk_of(int rank) {
    return disks[static_cast<std::size_t>(rank) * disks.size() / static_cast<std::size_t>(ranks_)];
  }

  /// Writes a checkpoint by one process, and gives each file to one disk: that of its rank, if it has one.
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
      if (!is_ranks) next = next == 0 ? disks.size() - 1 : next - 1;
      Disk& holder = is_ranks ? disk_of(rank->second % ranks_) : disks[next % disks.size()];
      holder.state->put("/d/src/" + path, bytes);
    }
  }

  struct How {
    bool own_input = true, own_output = true;
    int threads = 2;
    std::int64_t max_memory_bytes = 64 << 20;
    bool force = false, dry_run = false, single_file = false, resume = false;
    Progress* progress = nullptr;
  };

  /// Runs the job of one rank. \returns rank 0's result.
  CopyResult copy(Group& group, const Kind& to, int parts, const How& how) {
    Disk& own = disk_of(group.rank());
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
    what.topology.peer_store = how.own_input ? &store : nullptr;
    what.topology.own_places = how.own_output;
    what.dry_run = how.dry_run;
    what.single_file = how.single_file;
    what.resume = how.resume;
    what.progress = how.progress;
    return write_checkpoint(*output, group, *reader, what);
  }
  void run(const Kind& to, int parts, const How& how) {
    run_as_threads(ranks(), [&](Group& group) { copy(group, to, parts, how); });
  }

  /// DST on all disks; a file on two disks is a failure.
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
  /// The output of one process.
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

 private:
  const int ranks_;
};

class NodeLocal : public ::testing::TestWithParam<std::tuple<Kind, int>> {};

TEST_P(NodeLocal, EveryFormatIsWrittenAsByOneProcess) {
  const auto& [from, ranks] = GetParam();
  for (const Kind& to : kinds()) {
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

TEST_P(NodeLocal, RanksOfOneNodeShareItsDisk) {
  const auto& [from, ranks] = GetParam();
  const Kind to{"safetensors", true};
  Nodes nodes(2 * ranks, ranks);
  nodes.spread(content_of(ranks, false), from, 2 * ranks);
  nodes.run(to, 5, {});
  EXPECT_EQ(nodes.written(true), nodes.expected(to, 5));
}

INSTANTIATE_TEST_SUITE_P(Sources, NodeLocal,
                         ::testing::Combine(::testing::ValuesIn(kinds()), ::testing::Values(2, 3, 4)),
                         [](const auto& each) {
                           std::string name(std::get<0>(each.param).format);
                           std::ranges::replace(name, '-', '_');
                           return name + "_of_" + std::to_string(std::get<1>(each.param));
                         });

constexpr Kind kDcp{"dcp", false}, kSafetensors{"safetensors", true};

TEST(NodeLocalFiles, OfOneNameAndTwoSizesAreRefusedNamingBothRanks) {
  Nodes nodes(3);
  nodes.spread(content_of(1, false), kSafetensors, 3);
  const Files files = nodes.whole.files_below("/d/src");
  const auto& [name, bytes] = *files.begin();
  for (Disk& disk : nodes.disks) {
    if (!disk.files_below("/d/src").contains(name)) disk.state->put("/d/src/" + name, std::span(bytes).first(9));
  }
  const Error error = error_of([&] { nodes.run(kDcp, 3, {}); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_THAT(error.what(), ::testing::HasSubstr("ranks 0 and"));
  EXPECT_THAT(error.file(), ::testing::HasSubstr(name));
}

TEST(NodeLocalFiles, OfOneNameAndOneSizeButDifferentSavesAreRefused) {
  Nodes nodes(2);
  for (const int rank : {0, 1}) {
    std::mt19937_64 random(static_cast<std::uint64_t>(rank));
    const Content content{{"a", random_tensor(random, DType::kUint8, {9000, 1024})}};
    Disk& disk = nodes.disk_of(rank);
    write_checkpoint(*disk.disk, *content_reader(content),
                     {.format = "safetensors", .destination = "/d/src", .layout = ShardsLayout{1}});
  }
  nodes.source_format = "safetensors";
  const Error error = error_of([&] { nodes.run(kDcp, 2, {}); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_STREQ(error.what(), "ranks 0 and 1 have different files with the same name");
  EXPECT_EQ(error.file(), "model.safetensors");
}

TEST(NodeLocalFiles, ThatSeveralRanksHoldAreReadByEachOfThem) {
  Nodes nodes(3);
  nodes.spread(content_of(1, true), kSafetensors, 3);
  for (const auto& [path, bytes] : nodes.whole.files_below("/d/src"))
    nodes.disks[1].state->put("/d/src/" + path, bytes);
  nodes.run(kDcp, 3, {});
  EXPECT_EQ(nodes.written(true), nodes.expected(kDcp, 3));
}

TEST(NodeLocalFiles, ThatNobodyHoldsAreNotFound) {
  Nodes nodes(2);
  nodes.spread(content_of(1, false), kDcp, 2);
  nodes.disks[1].disk->remove_all("/d/src/__0_0.distcp");
  nodes.disks[0].disk->remove_all("/d/src/__0_0.distcp");
  EXPECT_EQ(error_of([&] { nodes.run(kSafetensors, 2, {}); }).code(), ErrorCode::kNotFound);
}

class NodeLocalRanks : public ::testing::TestWithParam<Kind> {};

TEST_P(NodeLocalRanks, ThatHoldEachOthersFilesAreToldAndWriteTheSame) {
  Nodes nodes(2);
  nodes.spread(content_of(1, true), GetParam(), 2);
  std::string warnings;
  const auto run = [&](const Kind& to) {
    run_as_threads(2, [&](Group& group) {
      const CopyResult result = nodes.copy(group, to, 2, {.force = true});
      if (group.rank() == 0) warnings = ::testing::PrintToString(result.warnings);
    });
  };
  run(kDcp);
  EXPECT_THAT(warnings, ::testing::Not(::testing::HasSubstr("of rank")));
  std::swap(nodes.disks[0], nodes.disks[1]);
  run(kDcp);
  EXPECT_THAT(warnings, ::testing::HasSubstr("' of rank 1 with rank 0"));
  EXPECT_EQ(nodes.written(true), nodes.expected(kDcp, 2));
}

std::vector<Kind> kinds_that_name_ranks() {
  std::vector<Kind> all = kinds();
  std::erase_if(all, [](const Kind& kind) { return kind.in_files || std::string_view(kind.format) == "torch-ranks"; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Sources, NodeLocalRanks, ::testing::ValuesIn(kinds_that_name_ranks()), [](const auto& each) {
  std::string name(each.param.format);
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(NodeLocalPlan, SaysTheSumsOfAllRanks) {
  Nodes nodes(3);
  nodes.spread(content_of(1, true), kDcp, 3);
  std::int64_t bytes = 0, wanted = 0;
  run_as_threads(3, [&](Group& group) {
    const CopyResult plan = nodes.copy(group, kDcp, 4, {.dry_run = true});
    if (group.rank() == 1) bytes = plan.bytes_to_write;
  });
  for (const auto& [name, tensor] : content_of(1, true)) wanted += std::ssize(tensor.bytes);
  EXPECT_EQ(bytes, wanted);
  EXPECT_TRUE(nodes.written(true).empty());
}

TEST(NodeLocalMemory, TooLittleForAnExchangeIsRefused) {
  Nodes nodes(2);
  nodes.spread(content_of(1, false), kDcp, 2);
  const Error error = error_of([&] { nodes.run(kDcp, 2, {.max_memory_bytes = 4 << 20}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.expected(), "at least 8MiB");
}

/// Two ranks that run a job repeatedly; each time a different call to one of their disks fails, until none does.
class NodeLocalFailures : public ::testing::Test {
 protected:
  /// \param put_old  puts an old destination on a disk
  /// \param check  gets the nodes after each run, and whether it failed
  /// \returns the number of failed runs
  int fail_each_call(const std::function<void(Disk&)>& put_old, const Kind& to, int parts, const Nodes::How& how,
                     const std::function<void(Nodes&, bool has_failed)>& check) {
    std::mt19937_64 random(1);
    const Content content = {{"a", random_tensor(random, DType::kUint8, {4, 3})},
                             {"b", random_tensor(random, DType::kFloat32, {5})}};
    int failures = 0;
    for (std::int64_t call = 0;; ++call) {
      SCOPED_TRACE("call " + std::to_string(call));
      Nodes nodes(2);
      nodes.spread(content, {"dcp", false}, 2);
      for (Disk& disk : nodes.disks) put_old(disk);
      MemoryState& failing = *nodes.disks[1].state;
      const std::int64_t before = failing.calls();
      failing.fail_at(before + call);
      bool has_failed = false;
      try {
        nodes.run(to, parts, how);
      } catch (const Error&) {
        has_failed = true;
        ++failures;
      }
      const bool was_reached = failing.calls() > before + call;
      failing.fail_at(-1);
      check(nodes, has_failed);
      if (!was_reached) return failures;
    }
  }
};

TEST_F(NodeLocalFailures, LeaveEveryDestinationAsItWas) {
  const int failures =
      fail_each_call([](Disk& disk) { disk.state->put("/d/dst/old", {}); }, kDcp, 2, {.threads = 1, .force = true},
                     [](Nodes& nodes, bool has_failed) {
                       for (Disk& disk : nodes.disks) {
                         EXPECT_EQ(disk.files_below("/d/dst").contains("old"), has_failed);
                       }
                     });
  EXPECT_GT(failures, 20);
}

/// A destination that is one file is on rank 0; the same commit removes old ones on other ranks, or leaves all.
TEST_F(NodeLocalFailures, LeaveAnOldFileOnEveryRankWhereTheNewOneIsNotWritten) {
  const auto old = std::as_bytes(std::span("old"));
  const auto kind_of = [](const Disk& disk) { return disk.disk->status("/d/dst").kind; };
  const auto check = [&](Nodes& nodes, bool has_failed) {
    for (const Disk& disk : nodes.disks) {
      const bool is_old = kind_of(disk) == FileKind::kFile && std::ranges::equal(disk.state->content("/d/dst"), old);
      EXPECT_EQ(is_old, has_failed);
    }
    if (has_failed) return;
    EXPECT_EQ(kind_of(nodes.disks[0]), FileKind::kFile);
    EXPECT_EQ(kind_of(nodes.disks[1]), FileKind::kAbsent);
  };
  const int failures = fail_each_call([&](Disk& disk) { disk.state->put("/d/dst", old); }, {"safetensors", true}, 1,
                                      {.threads = 1, .force = true, .single_file = true}, check);
  EXPECT_GT(failures, 10);
}

TEST(NodeLocalCommit, StandsOnTheRanksThatAreLeftAndSaysWhere) {
  Nodes nodes(3);
  nodes.spread(content_of(1, false), kDcp, 3);
  std::mutex mutex;
  std::vector<Error> errors;
  run_as_threads(3, [&](Group& group) {
    testing::BreakingGroup breaking(group, *nodes.disk_of(1).disk, "/d/dst");
    Group& own = group.rank() == 1 ? breaking : group;
    const Error error = error_of([&] { nodes.copy(own, kDcp, 3, {}); });
    const std::scoped_lock lock(mutex);
    errors.push_back(error);
  });
  for (const Error& error : errors) {
    EXPECT_EQ(error.code(), ErrorCode::kPeer);
    EXPECT_THAT(error.why(), ::testing::HasSubstr("committed on ranks: "));
  }
  EXPECT_EQ(nodes.written(true), nodes.expected(kDcp, 3));  // All were prepared, and none was killed here.
}

/// Two ranks that read for each other lose the connection once the first one has recorded some of its tiles.
class NodeLocalResume : public ::testing::Test {
 protected:
  NodeLocalResume() {
    std::mt19937_64 random(7);
    content_["a"] = random_tensor(random, DType::kFloat32, {9000, 1024});  // Not all of it is read by the first run.
    nodes_.spread(content_, kDcp, 2);
    std::swap(nodes_.disks[0], nodes_.disks[1]);  // All that is written comes from the other rank.
  }

  static bool is_journal(const std::string& path) { return path.find(".journal.") != std::string::npos; }
  bool has_journal(int rank) const {
    return std::ranges::any_of(nodes_.disks[static_cast<std::size_t>(rank)].state->paths(), is_journal);
  }
  void lose_a_rank() {
    run_as_threads(2, [&](Group& group) {
      testing::BreakingGroup breaking(group, [&] { return has_journal(0); });
      const Error error = error_of([&] { nodes_.copy(breaking, kTo, 2, how_); });
      EXPECT_EQ(error.code(), ErrorCode::kPeer);
    });
    EXPECT_TRUE(has_journal(0));
  }
  /// \returns rank 0's counters, which are those of all.
  std::unique_ptr<Progress> run() {
    std::array<std::unique_ptr<Progress>, 2> all{std::make_unique<Progress>(), std::make_unique<Progress>()};
    run_as_threads(2, [&](Group& group) {
      Nodes::How how = how_;
      how.progress = all[static_cast<std::size_t>(group.rank())].get();
      nodes_.copy(group, kTo, 2, how);
    });
    return std::move(all[0]);
  }
  std::string staged() const {
    for (const std::string& path : nodes_.disks[0].state->paths()) {
      if (path.find(".shardctl-") != std::string::npos && path.ends_with(".pt")) return path;
    }
    return {};
  }

  static constexpr Kind kTo{"torch-ranks", false};
  static constexpr std::int64_t kBytes = 9000 * 4096, kBatch = 8 << 20;
  Content content_;
  Nodes nodes_{2};
  const Nodes::How how_{.max_memory_bytes = 8 << 20, .resume = true};
};

TEST_F(NodeLocalResume, GoesOnWithWhatWasWrittenAndAsksForTheRest) {
  lose_a_rank();
  const auto progress = run();
  EXPECT_GE(progress->bytes_kept, kBatch);
  EXPECT_EQ(progress->bytes_kept + progress->bytes_written, kBytes);
  EXPECT_EQ(progress->bytes_sent, progress->bytes_written) << "nothing is asked for that is there";
  EXPECT_EQ(nodes_.written(true), nodes_.expected(kTo, 2));
}

TEST_F(NodeLocalResume, AsksAgainForWhatWasDamagedOrLostMeanwhile) {
  lose_a_rank();
  std::vector<std::byte> bytes = nodes_.disks[0].state->content(staged());
  for (std::size_t i = 0; i < bytes.size(); i += 64 << 10) bytes[i] ^= std::byte{1};
  nodes_.disks[0].state->put(staged(), bytes);
  for (const std::string& path : nodes_.disks[1].state->paths()) {
    if (is_journal(path)) nodes_.disks[1].disk->remove_all(path);
  }
  EXPECT_EQ(run()->bytes_kept, 0);
  EXPECT_EQ(nodes_.written(true), nodes_.expected(kTo, 2));
}

class DamagedNodeLocalResume : public NodeLocalResume, public ::testing::WithParamInterface<int> {};

/// The checksum of a storage is compared when all of it was read, by whichever rank and run.
TEST_P(DamagedNodeLocalResume, FindsWhatTheFirstRunSentAlready) {
  const std::string path = "/d/src/__1_0.distcp";
  std::vector<std::byte> bytes = nodes_.disks[0].state->content(path);
  bytes[bytes.size() / 8 * static_cast<std::size_t>(GetParam()) + bytes.size() / 16] ^= std::byte{1};
  nodes_.disks[0].state->put(path, bytes);
  lose_a_rank();
  EXPECT_EQ(error_of([&] { run(); }).code(), ErrorCode::kCorruption);
  EXPECT_TRUE(nodes_.written(true).empty());
}

INSTANTIATE_TEST_SUITE_P(Places, DamagedNodeLocalResume, ::testing::Range(0, 8));

}  // namespace
}  // namespace shard::testing

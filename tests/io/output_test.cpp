#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "libshard/core/error.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/local_output.h"
#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"
#include "tests/support/written_output.h"

namespace shard {
namespace {

using test::as_span;
using test::as_text;
using test::WrittenOutput;
using ::testing::ElementsAre;

const WrittenOutput::Files kOneFile{{"a.bin", "new"}};

class OutputTest : public ::testing::Test {
 protected:
  void write_folder(const std::string& destination, const LocalOutputOptions& options) {
    WrittenOutput(*fs, destination, kOneFile, options).commit();
  }
  /// The log without calls that only read.
  std::vector<std::string> changes() const {
    std::vector<std::string> lines = state->log();
    std::erase_if(lines, [](const std::string& line) {
      return line.starts_with("status") || line.starts_with("list") || line.starts_with("free") ||
             line.starts_with("open_folder");
    });
    for (std::string& line : lines) hide_random_digits(line);
    return lines;
  }
  static void hide_random_digits(std::string& line) {
    constexpr std::string_view kMark = ".shardctl-";
    for (std::size_t at = line.find(kMark); at != line.npos; at = line.find(kMark, at + kMark.size())) {
      line.replace(at + kMark.size(), 8, "X");
    }
  }

  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
};

TEST_F(OutputTest, NothingIsVisibleBeforeCommit) {
  const WrittenOutput output(*fs, "/out", kOneFile);
  EXPECT_EQ(fs->status("/out").kind, FileKind::kAbsent);
}

TEST_F(OutputTest, CommitShowsTheFolderAndLeavesNothingElse) {
  write_folder("/out", {});
  EXPECT_THAT(state->paths(), ElementsAre("/out", "/out/a.bin"));
  EXPECT_EQ(as_text(state->content("/out/a.bin")), "new");
}

TEST_F(OutputTest, CommitSyncsFilesThenFoldersThenRenamesThenSyncsTheParent) {
  write_folder("/out", {});
  EXPECT_THAT(changes(),
              ElementsAre("make_folder /.out.shardctl-X", "lock /.out.shardctl-X", "make_folder /.out.shardctl-X/out",
                          "create /.out.shardctl-X/out/a.bin", "expect_sync /.out.shardctl-X/out/a.bin",
                          "allocate /.out.shardctl-X/out/a.bin 3", "write /.out.shardctl-X/out/a.bin 0 3",
                          "sync /.out.shardctl-X/out/a.bin", "close /.out.shardctl-X/out/a.bin",
                          "set_mode /.out.shardctl-X/out", "sync_folder /.out.shardctl-X/out",
                          "rename /.out.shardctl-X/out /out", "sync_folder /", "remove /.out.shardctl-X"));
}

TEST_F(OutputTest, WithoutSyncNothingIsSynced) {
  write_folder("/out", {.sync = false});
  EXPECT_THAT(changes(), ::testing::Not(::testing::Contains(::testing::HasSubstr("sync"))));
}

TEST_F(OutputTest, SlashesAfterTheDestinationDoNotMatter) {
  write_folder("/out//", {});
  EXPECT_THAT(state->paths(), ElementsAre("/out", "/out/a.bin"));
}

TEST_F(OutputTest, ADestinationInTheWorkingFolderNeedsNoPath) {
  write_folder("out", {});
  EXPECT_THAT(state->paths(), ElementsAre("/out", "/out/a.bin"));
}

TEST_F(OutputTest, ForceReplacesByStepsWhereNamesCannotBeSwapped) {
  state->without_exchange();
  state->put("/out/old.bin", as_span("old"));
  write_folder("/out", {.force = true});
  EXPECT_THAT(state->paths(), ElementsAre("/out", "/out/a.bin"));
}

/// On NFS and the like, one of the two exists after any kill.
TEST_F(OutputTest, ForceReplacesAFileInOneStepWhereNamesCannotBeSwapped) {
  state->without_exchange();
  state->put("/out", as_span("old"));
  WrittenOutput(*fs, "/out", {{"a.bin", "new"}}, {.force = true}, false).commit();
  EXPECT_EQ(as_text(state->content("/out")), "new");
  EXPECT_THAT(state->paths(), ElementsAre("/out"));
  for (const std::string& call : state->log()) {
    EXPECT_FALSE(call.starts_with("rename /out") || call.starts_with("remove /out")) << call;
  }
}

TEST_F(OutputTest, AbortLeavesNothing) {
  WrittenOutput output(*fs, "/out", kOneFile);
  output.abort();
  EXPECT_THAT(state->paths(), ElementsAre());
  EXPECT_EQ(state->open_files(), 0);
}

TEST_F(OutputTest, UnlockedSiblingsOfTheSameNameAreRemoved) {
  state->put("/.out.shardctl-0123abcd/out/a.bin", as_span("left"));
  const WrittenOutput output(*fs, "/out", {});
  EXPECT_EQ(fs->status("/.out.shardctl-0123abcd").kind, FileKind::kAbsent);
}

TEST_F(OutputTest, SiblingsInUseOrOfOtherNamesStay) {
  for (const char* name : {"/.out.shardctl-0123abcd/f", "/.out2.shardctl-0123abcd/f", "/.out.shardctl-old-0123abcd/f",
                           "/.out.shardctl-0123/f"}) {
    state->put(name, as_span("x"));
  }
  const auto locked = fs->open_folder("/.out.shardctl-0123abcd");
  ASSERT_TRUE(locked->try_lock());
  WrittenOutput(*fs, "/out", {});
  EXPECT_EQ(state->paths().size(), 8U);
}

TEST_F(OutputTest, TwoRunsToOneDestinationDoNotDisturbEachOther) {
  WrittenOutput first(*fs, "/out", {{"a.bin", "first"}}), second(*fs, "/out", {{"a.bin", "second"}});
  first.commit();
  test::expect_error(ErrorCode::kExists, "exists", [&] { second.commit(); });
  EXPECT_EQ(as_text(state->content("/out/a.bin")), "first");
}

TEST_F(OutputTest, AnotherPartOpensWhatTheOwnerCreated) {
  const auto store = local_output(*fs, "/out", {}, {});
  const OutputFile file{"a.bin", 2};
  const auto output = store->begin(std::span(&file, 1), true);
  const auto owner = store->part(output->token()), other = store->part(output->token());
  test::expect_error(ErrorCode::kResource, "no such file", [&] { other->open("a.bin"); });
  owner->create(file).write_at(0, as_span("1"));
  other->open("a.bin").write_at(1, as_span("2"));
  owner->finish();
  other->finish();
  output->commit();
  EXPECT_EQ(as_text(state->content("/out/a.bin")), "12");
}

TEST_F(OutputTest, APartOfAFolderThatWasReplacedIsRefused) {
  const auto store = local_output(*fs, "/out", {}, {});
  const OutputFile file{"a.bin", 2};
  const auto output = store->begin(std::span(&file, 1), true);
  const std::string sibling = state->paths().front();
  fs->rename_new(sibling, "/moved");
  state->put(sibling + "/out/a.bin", as_span("of another"));
  test::expect_error(ErrorCode::kResource, "moved or replaced", [&] { store->part(output->token()); });
}

TEST_F(OutputTest, APartOnADifferentDiskIsRefused) {
  const OutputFile file{"a.bin", 2};
  const auto store = local_output(*fs, "/out", {}, {});
  const auto output = store->begin(std::span(&file, 1), true);
  const auto own_disk = make_memory_disk(std::make_shared<MemoryState>());
  const auto own_store = local_output(*own_disk, "/out", {}, {});
  test::expect_error(ErrorCode::kResource, "this rank does not see", [&] { own_store->part(output->token()); });
}

TEST_F(OutputTest, AStagedFolderThatWasReplacedIsNotCommittedAndTheOtherOneStays) {
  WrittenOutput output(*fs, "/out", kOneFile);
  const std::string sibling = state->paths().front();
  fs->rename_new(sibling, "/moved");
  state->put(sibling + "/out/a.bin", as_span("of another"));
  test::expect_error(ErrorCode::kResource, "moved or replaced", [&] { output.commit(); });
  output.abort();
  EXPECT_EQ(as_text(state->content(sibling + "/out/a.bin")), "of another");
  EXPECT_EQ(fs->status("/out").kind, FileKind::kAbsent);
}

TEST_F(OutputTest, AnOutputThatTheDiskCannotHoldIsRefused) {
  const auto store = local_output(*fs, "/out", {}, {});
  const OutputFile file{"a.bin", std::int64_t{1} << 41};
  test::expect_error(ErrorCode::kResource, "free", [&] { store->begin(std::span(&file, 1), true); });
  EXPECT_THAT(state->paths(), ElementsAre());
}

TEST_F(OutputTest, SpaceIsCountedAfterTheRestOfKilledRunsIsRemoved) {
  state->put("/.out.shardctl-0123abcd/out/a.bin", as_span("left"));
  const WrittenOutput output(*fs, "/out", {});
  const std::vector<std::string> log = state->log();
  const auto at = [&](const char* begin) {
    return std::ranges::find_if(log, [&](const std::string& line) { return line.starts_with(begin); });
  };
  ASSERT_NE(at("free"), log.end());
  EXPECT_LT(at("remove /.out.shardctl"), at("free"));
}

TEST_F(OutputTest, TheParentMustBeAFolder) {
  test::expect_error(ErrorCode::kResource, "mkdir -p", [&] { local_output(*fs, "/no/out", {}, {}); });
  state->put("/file", as_span("x"));
  for (const char* path : {"/file/out", "/file/more/out"}) {
    const Error error = test::error_of([&] { local_output(*fs, path, {}, {}); });
    EXPECT_EQ(error.code(), ErrorCode::kResource);
    EXPECT_EQ(error.file(), "/file");
    EXPECT_EQ(error.hint(), "");
  }
}

TEST_F(OutputTest, NamesThatNothingCanBeMadeOfAreRefused) {
  for (const char* path : {"/", "..", "a/..", "."}) {
    test::expect_error(ErrorCode::kInvalidArgument, "not name a new file", [&] { local_output(*fs, path, {}, {}); });
  }
}

class Destination : public OutputTest {
 protected:
  Destination() { state->put("/data/src/a.bin", as_span("x")); }
  void expect_overlap(const std::string& destination, const std::string& source, const std::string& words) {
    test::expect_error(ErrorCode::kExists, words, [&] { local_output(*fs, destination, {source}, {.force = true}); });
  }
};

TEST_F(Destination, RefusesTheSourceItself) {
  expect_overlap("/data/src", "/data/src/", "is the source");
  expect_overlap("/data/./src", "/data/src", "is the source");
}

TEST_F(Destination, RefusesAPlaceInsideTheSource) { expect_overlap("/data/src/out", "/data/src", "is inside"); }

TEST_F(Destination, RefusesAFileOfTheSourceFolder) { expect_overlap("/data/src/a.bin", "/data/src", "is inside"); }

TEST_F(Destination, RefusesAFolderThatHoldsTheSource) {
  expect_overlap("/data", "/data/src", "contains the source");
  expect_overlap("/data/src", "/data/src/a.bin", "contains the source");
}

/// A disk on which /mnt is a bind mount of /data/src.
class WithMount : public LocalDisk {
 public:
  explicit WithMount(LocalDisk& disk) : disk_(disk) {}
  FileStatus status(const std::string& path) const override { return disk_.status(real(path)); }
  std::vector<std::string> list(const std::string& folder) const override { return disk_.list(real(folder)); }
  std::unique_ptr<RandomReader> open(const std::string& path) const override { return disk_.open(real(path)); }
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override {
    return disk_.open_below(real(folder), relative);
  }
  std::unique_ptr<LocalFolder> open_folder(const std::string& path) override { return disk_.open_folder(real(path)); }
  std::string resolved(const std::string& path) const override { return path; }
  bool clone_range(const RandomReader&, std::int64_t, FileWriter&, std::int64_t, std::int64_t) override {
    return false;
  }

 private:
  static std::string real(const std::string& path) {
    const bool is_mounted = path.starts_with("/mnt") && !path.starts_with("/mnt/..");
    return is_mounted ? "/data/src" + path.substr(4) : path;
  }

  LocalDisk& disk_;
};

TEST_F(Destination, RefusesAFolderThatHoldsTheSourceUnderAMountPoint) {
  state->put("/data/other/b.bin", as_span("x"));
  WithMount disk(*fs);
  for (const char* source : {"/mnt", "/mnt/a.bin"}) {
    test::expect_error(ErrorCode::kExists, "contains the source",
                       [&] { local_output(disk, "/data", {source}, {.force = true}); });
    EXPECT_NO_THROW(local_output(disk, "/data/other", {source}, {.force = true}));
  }
}

/// A disk on which the parents of folders are not accessible.
class WithoutParents final : public WithMount {
 public:
  using WithMount::WithMount;
  FileStatus status(const std::string& path) const override {
    if (path.ends_with("/..")) throw Error(ErrorCode::kNotFound, "cannot stat: Permission denied").in_file(path);
    return WithMount::status(path);
  }
};

TEST_F(Destination, MayBeBelowFoldersThatAreNotAccessible) {
  state->put("/data/old/b.bin", as_span("x"));
  WithoutParents disk(*fs);
  EXPECT_NO_THROW(local_output(disk, "/data/out", {"/data/src"}, {}));
  EXPECT_NO_THROW(local_output(disk, "/data/old", {"/data/src"}, {.force = true}));
}

TEST_F(Destination, AllowsAPlaceBesideTheSource) {
  EXPECT_NO_THROW(local_output(*fs, "/data/out", {"/data/src"}, {}));
  EXPECT_NO_THROW(local_output(*fs, "/data/src/out", {"/data/src/a.bin"}, {}));
}

}  // namespace
}  // namespace shard

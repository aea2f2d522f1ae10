#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <thread>

#include "libshard/io/local_disk.h"
#include "libshard/io/local_output.h"
#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/written_output.h"

namespace shard {
namespace {

using test::as_span;
using test::expect_error;
using test::TempFolder;
using ::testing::ElementsAre;

mode_t mode_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

/// A umask for a while.
class Umask {
 public:
  explicit Umask(mode_t mask) : before_(::umask(mask)) {}
  ~Umask() { ::umask(before_); }

 private:
  mode_t before_;
};

/// The rights of an ordinary user for a while, even if root runs the test.
class OrdinaryUser {
 public:
  OrdinaryUser() { EXPECT_TRUE(!is_root_ || ::seteuid(65534) == 0); }
  ~OrdinaryUser() { EXPECT_TRUE(!is_root_ || ::seteuid(0) == 0); }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;

 private:
  const bool is_root_ = ::geteuid() == 0;
};

class PosixTest : public ::testing::Test {
 protected:
  void write_output(const std::string& destination, const LocalOutputOptions& options) {
    test::WrittenOutput(fs, destination, {{"a.bin", "new"}}, options).commit();
  }

  TempFolder temp;
  LocalDisk& fs = posix_disk();
};

TEST_F(PosixTest, StatusOfNothingIsAbsent) {
  temp.write("f", "x");
  EXPECT_EQ(fs.status(temp / "no").kind, FileKind::kAbsent);
  EXPECT_EQ(fs.status(temp / "f/no").kind, FileKind::kAbsent);
  EXPECT_EQ(fs.status(temp / std::string(256, 'n')).kind, FileKind::kAbsent);
}

TEST_F(PosixTest, HardLinksHaveOneIdentity) {
  temp.write("f", "x");
  std::filesystem::create_hard_link(temp / "f", temp / "g");
  EXPECT_EQ(fs.status(temp / "f").inode, fs.status(temp / "g").inode);
  EXPECT_EQ(fs.status(temp / "f").device, fs.status(temp / "g").device);
}

TEST_F(PosixTest, ListIsSorted) {
  for (const char* name : {"b", "B", ".c", "a"}) temp.write(name, "");
  EXPECT_THAT(fs.list(temp.path()), ElementsAre(".c", "B", "a", "b"));
}

TEST_F(PosixTest, ADiskInMemoryNeedsOneRequestAtATime) {
  EXPECT_EQ(fs.requests_at_once("/proc"), 1);
  EXPECT_EQ(fs.requests_at_once(temp / "none"), 1);
}

TEST_F(PosixTest, ReadingPastTheEndIsTruncation) {
  temp.write("f", "0123456789");
  std::vector<std::byte> out(5);
  const Error error = test::error_of([&] { fs.open(temp / "f")->read_at(8, out); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kTruncated);
  EXPECT_EQ(error.expected(), "13");
  EXPECT_EQ(error.found(), "10");
}

TEST_F(PosixTest, AFifoIsRefusedAndNotWaitedFor) {
  ASSERT_EQ(::mkfifo((temp / "fifo").c_str(), 0600), 0);
  expect_error(ErrorCode::kNotFound, "not a regular file", [&] { fs.open(temp / "fifo"); });
}

TEST_F(PosixTest, OpenBelowRefusesNamesThatLeadOut) {
  temp.write("secret", "x");
  temp.write("ckpt/sub/f", "y");
  for (const char* name : {"../secret", "/etc/passwd", "sub/../../secret", "./f", "sub//f", ""}) {
    expect_error(ErrorCode::kCorruption, "points outside", [&] { fs.open_below(temp / "ckpt", name); });
  }
}

TEST_F(PosixTest, OpenBelowRefusesAFolderLinkThatLeadsOut) {
  temp.write("outside/f", "x");
  temp.write("ckpt/f", "y");
  std::filesystem::create_directory_symlink("../outside", temp / "ckpt/link");
  expect_error(ErrorCode::kCorruption, "points outside", [&] { fs.open_below(temp / "ckpt", "link/f"); });
}

TEST_F(PosixTest, OpenBelowFollowsAFolderLinkThatStaysInside) {
  temp.write("ckpt/real/f", "y");
  std::filesystem::create_directory_symlink("real", temp / "ckpt/link");
  EXPECT_EQ(fs.open_below(temp / "ckpt", "link/f")->size(), 1);
}

TEST_F(PosixTest, OpenBelowFollowsTheLastLinkAsHuggingFaceCachesNeed) {
  temp.write("blobs/1234", "content");
  temp.write("snapshots/main/config.json", "{}");
  std::filesystem::create_symlink("../../blobs/1234", temp / "snapshots/main/model.safetensors");
  EXPECT_EQ(fs.open_below(temp / "snapshots/main", "model.safetensors")->size(), 7);
}

TEST_F(PosixTest, RelativePathsStayThoseOfTheFolderAtTheCall) {
  temp.write("here/ckpt/sub/a.bin", "here");
  temp.write("there/ckpt/sub/a.bin", "elsewhere");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(temp / "here");
  const std::unique_ptr<SourceStore> disk = posix_disk_from_here();
  std::filesystem::current_path(temp / "there");
  EXPECT_EQ(disk->status("ckpt/sub/a.bin").bytes, 4);
  EXPECT_EQ(disk->open("ckpt/sub/a.bin")->size(), 4);
  EXPECT_EQ(disk->open_below("ckpt", "sub/a.bin")->size(), 4);
  EXPECT_THAT(disk->list("."), ElementsAre("ckpt"));
  EXPECT_EQ(disk->status(temp / "there/ckpt/sub/a.bin").bytes, 9);
  std::filesystem::current_path(before);
}

TEST_F(PosixTest, CreateDoesNotReplaceAndDoesNotFollowLinks) {
  temp.write("f", "x");
  std::filesystem::create_symlink("target", temp / "link");
  expect_error(ErrorCode::kExists, "exists", [&] { fs.create(temp / "f"); });
  expect_error(ErrorCode::kExists, "exists", [&] { fs.create(temp / "link"); });
  EXPECT_FALSE(std::filesystem::exists(temp / "target"));
}

TEST_F(PosixTest, AllocateSetsTheSize) {
  const auto file = fs.create(temp / "f");
  file->allocate(5000);
  EXPECT_EQ(fs.status(temp / "f").bytes, 5000);
}

TEST_F(PosixTest, AllocateInMemoryComparesTheFreeSpaceAndReservesNothing) {
  const std::string folder = "/dev/shm", path = folder + "/posix_disk_test-" + std::to_string(::getpid());
  struct statfs info {};
  if (::statfs(folder.c_str(), &info) != 0 || info.f_type != TMPFS_MAGIC) GTEST_SKIP() << folder << " is no tmpfs";
  const auto file = fs.create(path);
  file->allocate(1 << 20);
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_size, 1 << 20);
  EXPECT_EQ(status.st_blocks, 0);
  const std::int64_t too_much = fs.open_folder(folder)->free_bytes() + (std::int64_t{1} << 40);
  expect_error(ErrorCode::kResource, "cannot reserve space: disk full", [&] { file->allocate(too_much); });
  EXPECT_EQ(fs.status(path).bytes, 1 << 20);
  ::unlink(path.c_str());
}

TEST_F(PosixTest, AFileSizeLimitIsAResourceError) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit low{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const auto file = fs.create(temp / "f");
  expect_error(ErrorCode::kResource, "file too large", [&] { file->write_at(8192, as_span("x")); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
}

TEST_F(PosixTest, MoreSpaceThanThereIsIsAResourceError) {
  const auto file = fs.create(temp / "f");
  const std::int64_t too_much = fs.open_folder(temp.path())->free_bytes() + (std::int64_t{1} << 40);
  const Error error = test::error_of([&] { file->allocate(too_much); });
  EXPECT_EQ(error.code(), ErrorCode::kResource);
  EXPECT_THAT(error.what(),
              ::testing::AnyOf(::testing::HasSubstr("disk full"), ::testing::HasSubstr("file too large")));
}

/// The behaviour of FUSE file systems without statfs.
TEST_F(PosixTest, AFileSystemThatDoesNotTellItsSizeIsNotFull) {
  EXPECT_EQ(fs.open_folder("/proc")->free_bytes(), INT64_MAX);
}

TEST_F(PosixTest, RenameNewDoesNotReplaceAnEmptyFolder) {
  std::filesystem::create_directory(temp / "a");
  std::filesystem::create_directory(temp / "b");
  expect_error(ErrorCode::kExists, "exists", [&] { fs.rename_new(temp / "a", temp / "b"); });
}

TEST_F(PosixTest, ExchangeSwapsAFileAndAFolder) {
  temp.write("a", "x");
  temp.write("b/f", "y");
  const auto folder = fs.open_folder(temp.path());
  if (!folder->exchange("a", *folder, "b")) GTEST_SKIP() << "no RENAME_EXCHANGE here";
  EXPECT_EQ(temp.read("b"), "x");
  EXPECT_EQ(temp.read("a/f"), "y");
}

TEST_F(PosixTest, RemoveAllRemovesALinkAndNotItsTarget) {
  temp.write("real/f", "x");
  std::filesystem::create_directory_symlink("real", temp / "link");
  fs.remove_all(temp / "link");
  EXPECT_EQ(temp.read("real/f"), "x");
  EXPECT_FALSE(std::filesystem::is_symlink(temp / "link"));
}

TEST_F(PosixTest, AFolderIsLockedUntilTheHandleGoes) {
  std::filesystem::create_directory(temp / "d");
  auto first = fs.open_folder(temp / "d");
  ASSERT_TRUE(first->try_lock());
  EXPECT_FALSE(fs.open_folder(temp / "d")->try_lock());
  first.reset();
  EXPECT_TRUE(fs.open_folder(temp / "d")->try_lock());
}

TEST_F(PosixTest, AMissingFileToContinueIsNotCalledAFolder) {
  const auto folder = fs.open_folder(temp.path());
  expect_error(ErrorCode::kResource, "cannot open for writing", [&] { folder->open_existing("none"); });
  expect_error(ErrorCode::kResource, "cannot open the folder", [&] { folder->open_folder("none"); });
}

TEST_F(PosixTest, CloneRangeClonesOrSaysNo) {
  temp.write("from", std::string(8192, 'x'));
  const auto from = fs.open(temp / "from");
  const auto to = fs.create(temp / "to");
  if (!fs.clone_range(*from, 0, *to, 0, 8192)) GTEST_SKIP() << "this file system does not clone";
  EXPECT_EQ(temp.read("to"), std::string(8192, 'x'));
}

TEST_F(PosixTest, OutputFilesAndFoldersGetTheModesOfTheUmask) {
  const Umask mask(027);
  write_output(temp / "out", {});
  EXPECT_EQ(mode_of(temp / "out"), 0750U);
  EXPECT_EQ(mode_of(temp / "out/a.bin"), 0640U);
}

TEST_F(PosixTest, TheTemporaryFolderIsClosedToOthers) {
  const test::WrittenOutput output(fs, temp / "out", {});
  const std::vector<std::string> names = fs.list(temp.path());
  ASSERT_EQ(names.size(), 1U);
  EXPECT_EQ(mode_of(temp / names.front()), 0700U);
}

TEST_F(PosixTest, ForceReplacesAFolderAndLeavesNothing) {
  temp.write("out/old.bin", "old");
  write_output(temp / "out", {.force = true});
  EXPECT_THAT(fs.list(temp.path()), ElementsAre("out"));
  EXPECT_THAT(fs.list(temp / "out"), ElementsAre("a.bin"));
}

TEST_F(PosixTest, ForceReplacesALinkAndNotWhatItPointsTo) {
  temp.write("real/old.bin", "old");
  std::filesystem::create_directory_symlink("real", temp / "out");
  write_output(temp / "out", {.force = true});
  EXPECT_FALSE(std::filesystem::is_symlink(temp / "out"));
  EXPECT_EQ(temp.read("real/old.bin"), "old");
}

TEST_F(PosixTest, LeftSiblingsAreRemovedAndLockedOnesStay) {
  temp.write(".out.shardctl-00000001/f", "x");
  temp.write(".out.shardctl-00000002/f", "x");
  const auto locked = fs.open_folder(temp / ".out.shardctl-00000002");
  ASSERT_TRUE(locked->try_lock());
  write_output(temp / "out", {});
  EXPECT_THAT(fs.list(temp.path()), ElementsAre(".out.shardctl-00000002", "out"));
}

TEST_F(PosixTest, AHardLinkOfASourceFileIsThatSource) {
  temp.write("src/a.bin", "x");
  std::filesystem::create_hard_link(temp / "src/a.bin", temp / "alias.bin");
  const LocalOutputOptions options{.force = true};
  expect_error(ErrorCode::kExists, "is the source",
               [&] { local_output(fs, temp / "alias.bin", {temp / "src/a.bin"}, options); });
  expect_error(ErrorCode::kExists, "one of the source's files",
               [&] { local_output(fs, temp / "alias.bin", {temp / "src"}, options); });
}

TEST_F(PosixTest, ADestinationInsideTheSourceThroughALinkIsRefused) {
  temp.write("src/a.bin", "x");
  std::filesystem::create_directory_symlink("src", temp / "link");
  expect_error(ErrorCode::kExists, "is inside the source",
               [&] { local_output(fs, temp / "link/out", {temp / "src"}, {}); });
}

TEST_F(PosixTest, ADestinationThatTheSourcesLinksLeadIntoIsRefused) {
  temp.write("blobs/1234", "x");
  temp.write("snapshot/config.json", "{}");
  std::filesystem::create_symlink("../blobs/1234", temp / "snapshot/a.bin");
  const LocalOutputOptions options{.force = true};
  for (const char* source : {"snapshot", "snapshot/a.bin"}) {
    expect_error(ErrorCode::kExists, "contains the source",
                 [&] { local_output(fs, temp / "blobs", {temp / source}, options); });
  }
  EXPECT_NO_THROW(local_output(fs, temp / "other", {temp / "snapshot"}, options));
}

TEST_F(PosixTest, ADestinationThatLinksInSubFoldersLeadToIsRefused) {
  temp.write("blobs/1234", "x");
  temp.write("by_file/step/zero/latest", "x");
  temp.write("by_folder/latest", "x");
  temp.write("by_both/latest", "x");
  temp.write("steps/step/latest", "x");
  std::filesystem::create_symlink("../../../blobs/1234", temp / "by_file/step/zero/a.pt");
  std::filesystem::create_directory_symlink("../blobs", temp / "by_folder/step");
  std::filesystem::create_directory_symlink("../steps/step", temp / "by_both/step");
  std::filesystem::create_symlink("../../blobs/1234", temp / "steps/step/a.pt");
  std::filesystem::create_directory_symlink("..", temp / "by_both/up");  // Not followed further.
  for (const char* source : {"by_file", "by_folder", "by_both"}) {
    expect_error(ErrorCode::kExists, "contains the source",
                 [&] { local_output(fs, temp / "blobs", {temp / source}, {.force = true}); });
  }
  temp.write("other/f", "x");
  EXPECT_NO_THROW(local_output(fs, temp / "other", {temp / "by_both"}, {.force = true}));
}

TEST_F(PosixTest, ADestinationThatHoldsALinkedSourceIsRefused) {
  temp.write("data/real/a.bin", "x");
  temp.write("links/f", "x");
  std::filesystem::create_directory_symlink("../data/real", temp / "links/ckpt");
  for (const char* destination : {"data", "links"}) {
    expect_error(ErrorCode::kExists, "contains the source",
                 [&] { local_output(fs, temp / destination, {temp / "links/ckpt"}, {.force = true}); });
  }
}

/// A lock on a folder, as another run has it while it commits.
class Lock {
 public:
  explicit Lock(const std::string& folder) : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY)) {
    EXPECT_EQ(::flock(descriptor_, LOCK_EX), 0);
  }
  ~Lock() { ::close(descriptor_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int descriptor_;
};

TEST_F(PosixTest, ACommitWaitsForTheCommitOfAnotherRun) {
  temp.write("out/a.bin", "old");
  test::WrittenOutput output(fs, temp / "out", {{"a.bin", "mine"}}, {.force = true});
  std::optional<Lock> lock(temp.path());
  std::thread commit([&] { output.commit(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(temp.read("out/a.bin"), "old");
  lock.reset();
  commit.join();
  EXPECT_EQ(temp.read("out/a.bin"), "mine");
}

TEST_F(PosixTest, ALockThatStaysDoesNotPreventACommit) {
  const Lock lock(temp.path());
  write_output(temp / "out", {});
  EXPECT_EQ(temp.read("out/a.bin"), "new");
}

TEST_F(PosixTest, ReadOnlyFoldersAreRemovedWithTheOldOutput) {
  std::filesystem::permissions(temp.path(), std::filesystem::perms::all);
  const OrdinaryUser user;
  temp.write("out/sub/a.bin", "old");
  ASSERT_EQ(::chmod((temp / "out/sub").c_str(), 0555), 0);
  write_output(temp / "out", {.force = true});
  EXPECT_THAT(fs.list(temp.path()), ElementsAre("out"));
  EXPECT_THAT(fs.list(temp / "out"), ElementsAre("a.bin"));
}

TEST_F(PosixTest, AReadOnlyOutputIsNotReplacedAndNothingIsLeft) {
  std::filesystem::permissions(temp.path(), std::filesystem::perms::all);
  const OrdinaryUser user;
  temp.write("out/a.bin", "old");
  ASSERT_EQ(::chmod((temp / "out").c_str(), 0555), 0);
  expect_error(ErrorCode::kResource, "cannot replace", [&] { write_output(temp / "out", {.force = true}); });
  EXPECT_EQ(temp.read("out/a.bin"), "old");
  EXPECT_THAT(fs.list(temp.path()), ElementsAre("out"));
  ::chmod((temp / "out").c_str(), 0755);  // So that the test's folder can be removed.
}

TEST_F(PosixTest, ADanglingLinkIsADestinationThatExists) {
  std::filesystem::create_symlink("nowhere", temp / "out");
  expect_error(ErrorCode::kExists, "already exists", [&] { local_output(fs, temp / "out", {}, {}); });
  write_output(temp / "out", {.force = true});
  EXPECT_EQ(temp.read("out/a.bin"), "new");
  EXPECT_THAT(fs.list(temp.path()), ElementsAre("out"));
}

TEST_F(PosixTest, ForceKeepsTheModesOfWhatItReplaces) {
  const Umask mask(022);
  temp.write("out/a.bin", "old");
  temp.write("f", "old");
  ASSERT_EQ(::chmod((temp / "out").c_str(), 0700), 0);
  ASSERT_EQ(::chmod((temp / "out/a.bin").c_str(), 0640), 0);
  temp.write("out/sub/deep/c.bin", "old");
  ASSERT_EQ(::chmod((temp / "out/sub").c_str(), 0710), 0);
  ASSERT_EQ(::chmod((temp / "out/sub/deep/c.bin").c_str(), 0600), 0);
  ASSERT_EQ(::chmod((temp / "f").c_str(), 0600), 0);
  test::WrittenOutput(fs, temp / "out",
                      {{"a.bin", "new"}, {"b.bin", "new"}, {"sub/deep/c.bin", "new"}, {"new/d.bin", "new"}},
                      {.force = true})
      .commit();
  test::WrittenOutput(fs, temp / "f", {{"ignored", "new"}}, {.force = true}, false).commit();
  EXPECT_EQ(mode_of(temp / "out"), 0700U);
  EXPECT_EQ(mode_of(temp / "out/a.bin"), 0640U);
  EXPECT_EQ(mode_of(temp / "out/b.bin"), 0644U);
  EXPECT_EQ(mode_of(temp / "out/sub"), 0710U);
  EXPECT_EQ(mode_of(temp / "out/sub/deep"), 0755U);
  EXPECT_EQ(mode_of(temp / "out/sub/deep/c.bin"), 0600U);
  EXPECT_EQ(mode_of(temp / "out/new"), 0755U);
  EXPECT_EQ(mode_of(temp / "f"), 0600U);
  EXPECT_EQ(temp.read("f"), "new");
}

TEST_F(PosixTest, ANameThatIsTooLongIsAResourceError) {
  const std::string name(300, 'x');
  expect_error(ErrorCode::kResource, "name too long", [&] { write_output(temp / name, {}); });
  expect_error(ErrorCode::kResource, "name too long", [&] { local_output(fs, temp / name + "/x", {}, {}); });
}

TEST_F(PosixTest, ALongNameIsWrittenAndItsSiblingIsRemoved) {
  for (const int length : {200, 201, 255}) {
    const std::string destination = temp / std::string(static_cast<std::size_t>(length), 'x');
    write_output(destination, {});
    write_output(destination, {.force = true});
    EXPECT_EQ(fs.status(destination).kind, FileKind::kFolder);
    EXPECT_THAT(fs.list(temp.path()), ::testing::Each(::testing::Not(::testing::StartsWith("."))));
  }
}

/// The sibling of an output is moved away, and a link to a folder of the user's takes its name.
class SwappedSibling : public PosixTest {
 protected:
  void swap_sibling() {
    for (const std::string& name : fs.list(temp.path())) {
      if (!name.starts_with(".out.")) continue;
      std::filesystem::rename(temp / name, temp / "moved");
      std::filesystem::create_directory_symlink("private", temp / name);
    }
  }
  void expect_untouched() {
    EXPECT_EQ(temp.read("private/out/a.bin"), "secret");
    EXPECT_FALSE(std::filesystem::exists(temp / "out"));
  }
};

TEST_F(SwappedSibling, IsNotCommittedAndNothingBehindTheLinkIsTouched) {
  temp.write("private/out/a.bin", "secret");
  {
    test::WrittenOutput output(fs, temp / "out", {{"a.bin", "new"}});
    swap_sibling();
    expect_error(ErrorCode::kResource, "moved or replaced", [&] { output.commit(); });
  }
  expect_untouched();
  EXPECT_TRUE(std::filesystem::is_empty(temp / "moved"));
}

TEST_F(SwappedSibling, GetsNoFiles) {
  temp.write("private/out/a.bin", "secret");
  {
    const auto store = local_output(fs, temp / "out", {}, {});
    const std::vector<OutputFile> files{{"a.bin", 3}, {"b.bin", 3}};
    const auto output = store->begin(files, true);
    const auto part = store->part(output->token());
    swap_sibling();
    part->create(files[0]).write_at(0, as_span("new"));
    EXPECT_FALSE(std::filesystem::exists(temp / "private/out/b.bin"));
    expect_error(ErrorCode::kResource, "", [&] { store->part(output->token()); });
    part->finish();
  }
  expect_untouched();
}

TEST_F(PosixTest, AParentWithoutPermissionIsAResourceError) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  std::filesystem::create_directory(temp / "shut");
  std::filesystem::permissions(temp / "shut", std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  expect_error(ErrorCode::kResource, "Permission denied", [&] { test::WrittenOutput(fs, temp / "shut/out", {}); });
}

}  // namespace
}  // namespace shard

// An output in an object store is absent or complete if any request fails, and a killed run can be continued.
#include "libshard/stores/object_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <system_error>

#include "libshard/stores/upload_note.h"
#include "tests/stores/memory_bucket.h"
#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"
#include "tests/support/without_threads.h"

namespace shard {
namespace {

using Failure = testing::MemoryBucket::Failure;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kPart = 8 << 20;
const std::string kOut = "s3://b/out";

/// Bytes that differ at each offset.
std::string pattern(std::int64_t bytes, int seed) {
  std::string text(static_cast<std::size_t>(bytes), '\0');
  for (std::size_t i = 0; i < text.size(); i += 64) text[i] = static_cast<char>(seed + static_cast<int>(i / 4096));
  return text;
}

class ObjectOutputs : public ::testing::Test {
 protected:
  using Files = std::vector<std::pair<std::string, std::string>>;

  /// One run from begin to commit, as one rank does it. Errors are exceptions.
  void write(const Files& written, ObjectOutputOptions options = {}, bool is_folder = true) {
    options.says = [this](const std::string& text) { said.push_back(text); };
    const auto output_store = object_output(objects, kOut, {}, options);
    std::unique_ptr<LeftOutput> left = options.resume ? output_store->find_left() : nullptr;
    std::vector<OutputFile> named;
    for (const auto& [path, content] : written) {
      named.push_back({path, std::ssize(content), path == ".manifest.json", true});
    }
    const auto output = output_store->begin(named, is_folder, std::move(left));
    const auto part = output_store->part(output->token());
    for (std::size_t i = 0; i < written.size(); ++i) write_backwards(part->create(named[i]), written[i].second);
    part->finish();
    output->accept(part->receipt());
    output->prepare();
    output->commit();
  }

  static void write_backwards(FileWriter& to, const std::string& content) {
    constexpr std::int64_t kPiece = 3 << 20;
    for (std::int64_t end = std::ssize(content); end > 0; end -= kPiece) {
      const std::int64_t begin = std::max<std::int64_t>(0, end - kPiece);
      to.write_at(begin, test::as_span(content).subspan(static_cast<std::size_t>(begin),
                                                        static_cast<std::size_t>(end - begin)));
    }
  }

  void expect_files(const Files& wanted) const {
    for (const auto& [path, content] : wanted) {
      ASSERT_TRUE(objects.objects.contains(kOut + "/" + path)) << path;
      EXPECT_TRUE(objects.text(kOut + "/" + path) == content) << path;
    }
    EXPECT_EQ(objects.objects.size(), wanted.size());
    EXPECT_THAT(objects.uploads, IsEmpty());
  }
  std::vector<std::string> lines(const std::string& begin) const {
    std::vector<std::string> found;
    std::ranges::copy_if(objects.log, std::back_inserter(found),
                         [&](const auto& line) { return line.starts_with(begin); });
    return found;
  }
  bool has_marker() const { return objects.objects.contains(kOut + "/.metadata"); }
  void reset() {
    objects.objects.clear();
    objects.uploads.clear();
    objects.log.clear();
    objects.is_dead = false;
    objects.failure = Failure::kNone;
    objects.parts_stored = 0;
    said.clear();
  }

  const Files files{
      {".metadata", "meta"}, {"a", pattern(kPart + 100, 1)}, {"b/c", pattern(kPart / 4, 2)}, {"empty", ""}};
  testing::MemoryBucket objects;
  std::vector<std::string> said;
};

TEST_F(ObjectOutputs, AreCompletedMarkerLastAndReleaseTheLockAfterThat) {
  write(files);
  std::vector<std::string> last(objects.log.end() - 3, objects.log.end());
  EXPECT_THAT(last, ElementsAre("put s3://b/out/.metadata", "uploads s3://b/out", "remove s3://b/out.shardctl"));
}

TEST_F(ObjectOutputs, AreInvisibleBeforeTheCommit) {
  const auto output_store = object_output(objects, kOut, {}, {});
  const std::vector<OutputFile> named{{"a", kPart, false, true}};
  const auto output = output_store->begin(named, true);
  const auto part = output_store->part(output->token());
  write_backwards(part->create(named[0]), pattern(kPart, 1));
  part->finish();
  output->accept(part->receipt());
  output->prepare();
  EXPECT_EQ(objects.objects.size(), 1U) << "only the lock";
  EXPECT_TRUE(objects.objects.contains(note_url(kOut)));
}

TEST_F(ObjectOutputs, AreRefusedWhereSomethingExists) {
  objects.objects[kOut + "/x"] = {};
  test::expect_error(ErrorCode::kExists, "already exists", [&] { write(files); });
  objects.objects.clear();
  objects.objects[kOut] = {};
  test::expect_error(ErrorCode::kExists, "already exists", [&] { write(files); });
  EXPECT_THAT(objects.uploads, IsEmpty());
  EXPECT_EQ(objects.objects.size(), 1U);
}

TEST_F(ObjectOutputs, AreRefusedIfAnObjectAppearsMeanwhile) {
  const auto output_store = object_output(objects, kOut, {}, {});
  const std::vector<OutputFile> named{{"a", 3, false, true}, {".metadata", 1, false, true}};
  {
    const auto output = output_store->begin(named, true);
    const auto part = output_store->part(output->token());
    write_backwards(part->create(named[0]), "abc");
    write_backwards(part->create(named[1]), "m");
    part->finish();
    output->accept(part->receipt());
    objects.objects[kOut + "/.metadata"].run = "other";
    test::expect_error(ErrorCode::kExists, "already exists", [&] { output->commit(); });
  }
  EXPECT_EQ(objects.objects.size(), 1U) << "what was completed is removed";
}

TEST_F(ObjectOutputs, AreRefusedWhileAnotherRunHoldsTheLock) {
  const auto output_store = object_output(objects, kOut, {}, {});
  const std::vector<OutputFile> named{{"a", kPart, false, true}};
  const auto output = output_store->begin(named, true);
  const Error error = test::error_of([&] { write(files); });
  EXPECT_EQ(error.code(), ErrorCode::kExists);
  EXPECT_EQ(error.file(), note_url(kOut));
  EXPECT_EQ(objects.uploads.size(), 1U) << "the other run's";
}

TEST_F(ObjectOutputs, AreRefusedByStoresThatIgnoreConditions) {
  objects.ignores_conditions = true;
  test::expect_error(ErrorCode::kUnsupported, "does not support conditional writes", [&] { write(files); });
  EXPECT_THAT(objects.objects, IsEmpty());
}

TEST_F(ObjectOutputs, WithForceRemoveTheOldMarkerFirstAndTheRestLast) {
  write({{".metadata", "old"}, {"a", "old"}, {"gone", "old"}});
  objects.log.clear();
  write(files, {.force = true});
  expect_files(files);
  EXPECT_THAT(said, ElementsAre(::testing::HasSubstr("/.metadata is removed first")));
  const auto at = [&](const std::string& line) { return std::ranges::find(objects.log, line) - objects.log.begin(); };
  EXPECT_LT(at("remove s3://b/out/.metadata"), at("complete s3://b/out/a"));
  EXPECT_GT(at("remove s3://b/out/gone"), at("put s3://b/out/.metadata"));
}

TEST_F(ObjectOutputs, WithForceRemoveAllFirstIfNothingMarksTheOldOne) {
  write({{"a", "old"}, {"gone", "old"}});
  objects.log.clear();
  write(files, {.force = true});
  expect_files(files);
  const auto at = [&](const std::string& line) { return std::ranges::find(objects.log, line) - objects.log.begin(); };
  EXPECT_LT(at("remove s3://b/out/gone"), at("complete s3://b/out/a"));
}

TEST_F(ObjectOutputs, ASingleFileIsReplacedInOneStepWithItsCompanion) {
  objects.objects[kOut] = {.bytes = {}, .etag = "old", .run = ""};
  objects.objects[kOut + ".manifest.json"] = {};
  write({{"out", "new"}, {".manifest.json", "manifest"}}, {.force = true}, false);
  EXPECT_EQ(objects.text(kOut), "new");
  EXPECT_EQ(objects.text(kOut + ".manifest.json"), "manifest");
  EXPECT_THAT(lines("remove s3://b/out"), ElementsAre("remove s3://b/out.manifest.json", "remove s3://b/out.shardctl"));
}

TEST_F(ObjectOutputs, AStaleCompanionIsRefused) {
  objects.objects[kOut + ".manifest.json"] = {};
  test::expect_error(ErrorCode::kExists, "already exists", [&] { write({{"out", "new"}}, {}, false); });
  EXPECT_EQ(objects.objects.size(), 1U);
}

TEST_F(ObjectOutputs, KilledBeforeAnyRequestAreAbsentOrCompleteAndCanBeContinued) {
  write(files);
  const auto requests = static_cast<int>(objects.log.size());
  int fewest = 99;
  for (int i = 0; i < requests; ++i) {
    reset();
    objects.failure = Failure::kKill;
    objects.fails_at = i;
    try {
      write(files);
    } catch (const Error&) {
    }
    const bool has_all = objects.objects.contains(kOut + "/a") && objects.objects.contains(kOut + "/b/c");
    EXPECT_TRUE(has_all || !has_marker()) << i;
    objects.is_dead = false;
    objects.failure = Failure::kNone;
    objects.parts_stored = 0;
    const bool was_whole = has_marker() && !objects.objects.contains(note_url(kOut));
    if (was_whole) continue;
    write(files, {.resume = true});
    expect_files(files);
    fewest = std::min(fewest, objects.parts_stored);
  }
  EXPECT_EQ(fewest, 0) << "the parts of the killed run are kept";
}

TEST_F(ObjectOutputs, WithALostAnswerOfAnyRequestAreComplete) {
  write(files);
  const auto requests = static_cast<int>(objects.log.size());
  for (int i = 0; i < requests; ++i) {
    reset();
    objects.failure = Failure::kLost;
    objects.fails_at = i;
    ASSERT_NO_THROW(write(files)) << i << ": " << objects.log.back();
    expect_files(files);
  }
}

TEST_F(ObjectOutputs, WithARequestThatFailsForGoodAreAbsentAndLeaveNothing) {
  write(files);
  const std::vector<std::string> log = objects.log;
  for (int i = 0; i < static_cast<int>(log.size()); ++i) {
    reset();
    objects.failure = Failure::kLast;
    objects.fails_at = i;
    bool has_failed = false;
    try {
      write(files);
    } catch (const Error& error) {
      has_failed = true;
      EXPECT_EQ(error.code(), ErrorCode::kResource);
    }
    if (!has_failed) {  // Only the cleaning after the commit.
      EXPECT_TRUE(has_marker()) << i;
      continue;
    }
    EXPECT_THAT(objects.objects, IsEmpty()) << i << ": " << log[static_cast<std::size_t>(i)];
    EXPECT_THAT(objects.uploads, IsEmpty()) << i;
  }
}

TEST_F(ObjectOutputs, ContinuedWithOtherBytesSendThem) {
  objects.failure = Failure::kKill;
  objects.fails_at = 11;  // After the first parts.
  EXPECT_THROW(write(files), Error);
  objects.is_dead = false;
  objects.failure = Failure::kNone;
  objects.knows_checksums = false;  // MD5s are compared instead.
  Files changed = files;
  changed[1].second = pattern(kPart + 100, 3);
  write(changed, {.resume = true});
  expect_files(changed);
}

TEST_F(ObjectOutputs, ContinuedWithOtherFilesAreRefused) {
  objects.failure = Failure::kKill;
  objects.fails_at = 11;
  EXPECT_THROW(write(files), Error);
  objects.is_dead = false;
  objects.failure = Failure::kNone;
  const std::size_t uploads = objects.uploads.size();
  test::expect_error(ErrorCode::kInvalidArgument, "a different output", [&] { write({{"a", "x"}}, {.resume = true}); });
  EXPECT_EQ(objects.uploads.size(), uploads) << "they can still be continued";
  write({{"a", "x"}}, {.force = true});
  expect_files({{"a", "x"}});
}

TEST_F(ObjectOutputs, WhoseObjectWasCompletedWithOtherBytesCannotBeContinued) {
  write(files);
  const auto requests = static_cast<int>(objects.log.size());
  reset();
  objects.failure = Failure::kKill;
  objects.fails_at = requests - 3;  // Before the marker.
  EXPECT_THROW(write(files), Error);
  objects.is_dead = false;
  objects.failure = Failure::kNone;
  Files changed = files;
  changed[2].second = pattern(kPart / 4, 9);
  test::expect_error(ErrorCode::kResource, "with different bytes", [&] { write(changed, {.resume = true}); });
}

TEST_F(ObjectOutputs, OfTwoRunsOneWins) {
  const auto one = object_output(objects, kOut, {}, {}), two = object_output(objects, kOut, {}, {});
  const std::vector<OutputFile> named{{"a", 0, false, true}};
  const auto output = one->begin(named, true);
  EXPECT_THROW(two->begin(named, true), Error);
  output->commit();
  test::expect_error(ErrorCode::kExists, "already exists", [&] { two->begin(named, true); });
}

TEST_F(ObjectOutputs, ThatLostTheirLockEndAndLeaveTheOtherRunAlone) {
  const std::vector<OutputFile> named{{".metadata", 4, false, true}, {"a", kPart, false, true}};
  const auto one = object_output(objects, kOut, {}, {}), two = object_output(objects, kOut, {}, {.force = true});
  std::unique_ptr<Output> first = one->begin(named, true);
  {
    const auto part = one->part(first->token());
    for (const OutputFile& file : named) part->create(file);
    part->finish();
    first->accept(part->receipt());
  }
  const auto second = two->begin(named, true);
  test::expect_error(ErrorCode::kExists, "taken this output over", [&] { first->prepare(); });
  first.reset();
  const auto part = two->part(second->token());
  for (const OutputFile& file : named) part->create(file);
  part->finish();
  second->accept(part->receipt());
  second->commit();
  EXPECT_EQ(objects.objects.size(), 2U);
}

TEST_F(ObjectOutputs, StayWithinTheirMemoryAlsoIfAllPartsAreIncomplete) {
  const std::string content = pattern(6 * kPart, 5);
  const auto output_store = object_output(objects, kOut, {}, {.memory_bytes = 2 * kPart});
  const std::vector<OutputFile> named{{"a", std::ssize(content), false, true}};
  const auto output = output_store->begin(named, true);
  const auto part = output_store->part(output->token());
  FileWriter& to = part->create(named[0]);
  constexpr std::int64_t kPiece = 1 << 20;
  for (std::int64_t row = 0; row < kPart / kPiece; ++row) {  // All parts fill up together.
    for (std::int64_t at = row * kPiece; at < std::ssize(content); at += kPart) {
      to.write_at(at, test::as_span(content).subspan(static_cast<std::size_t>(at), kPiece));
    }
  }
  part->finish();
  output->accept(part->receipt());
  output->commit();
  EXPECT_TRUE(objects.text(kOut + "/a") == content);
}

TEST_F(ObjectOutputs, OfAllWritersFailIfTheSystemStartsNoThreadThatSends) {
  const std::string content = pattern(kPart, 5);
  const auto output_store = object_output(objects, kOut, {}, {.memory_bytes = kPart});
  const std::vector<OutputFile> named{{"a", kPart, false, true}, {"b", kPart, false, true}};
  const auto output = output_store->begin(named, true);
  const auto part = output_store->part(output->token());
  const test::WithoutThreads none;
  EXPECT_THROW(part->create(named[0]).write_at(0, test::as_span(content)), std::system_error);
  // Rather than wait for the memory of the first part.
  EXPECT_THROW(part->create(named[1]).write_at(0, test::as_span(content).first(1)), std::system_error);
}

TEST_F(ObjectOutputs, PassEachBlockOnceAndZerosWhereNothingWasWritten) {
  std::map<std::int64_t, std::int64_t> seen;
  std::mutex mutex;
  OutputFile file{"a", kPart + kOutputBlock + 5, false, true};
  file.on_block = [&](std::int64_t block, std::span<const std::byte> bytes) {
    const std::scoped_lock lock(mutex);
    EXPECT_TRUE(seen.emplace(block, std::ssize(bytes)).second);
  };
  const auto output_store = object_output(objects, kOut, {}, {});
  const auto output = output_store->begin(std::span(&file, 1), true);
  const auto part = output_store->part(output->token());
  part->create(file).write_at(kPart, test::as_span("x"));
  part->pass_blocks();
  EXPECT_THAT(seen, ElementsAre(std::pair(0, kOutputBlock), std::pair(1, kOutputBlock), std::pair(2, kOutputBlock),
                                std::pair(3, 5)));
  part->finish();
  output->accept(part->receipt());
  output->commit();
  EXPECT_EQ(objects.text(kOut + "/a")[kPart], 'x');
  EXPECT_EQ(objects.text(kOut + "/a")[0], '\0');
}

TEST_F(ObjectOutputs, PathsThatLeadOutAreRefused) {
  for (const char* path : {"../a", "/a", "x/../../a", "x//a", ""}) {
    test::expect_error(ErrorCode::kInvalidArgument, "not a file below", [&] { write({{path, "1"}}); });
  }
  for (const char* url : {"s3://b", "s3://b/", "s3://b/../x", "s3://b//x", "s3://b/x/./y"}) {
    test::expect_error(ErrorCode::kInvalidArgument, "cannot write", [&] { object_output(objects, url, {}, {}); });
  }
  EXPECT_THAT(objects.objects, IsEmpty());
}

TEST_F(ObjectOutputs, ThatOverlapTheSourceAreRefused) {
  for (const char* source : {"s3://b/out", "s3://b/out/", "s3://b/out/x", "s3://b"}) {
    test::expect_error(ErrorCode::kExists, "cannot write",
                       [&] { object_output(objects, kOut, {source}, {.force = true}); });
  }
  EXPECT_NO_THROW(object_output(objects, kOut, {"s3://b/output", "/local", "s3://c/out"}, {}));
}

TEST_F(ObjectOutputs, LeftByAKilledRunAreListedAndRemoved) {
  objects.failure = Failure::kKill;
  objects.fails_at = 11;
  EXPECT_THROW(write(files), Error);
  objects.is_dead = false;
  objects.failure = Failure::kNone;
  const std::vector<LeftUpload> left = left_uploads(objects, kOut);
  EXPECT_EQ(left.size(), 2U);
  EXPECT_TRUE(has_upload_lock(objects, kOut));
  remove_uploads(objects, kOut, left);
  EXPECT_THAT(objects.objects, IsEmpty());
  EXPECT_THAT(objects.uploads, IsEmpty());
}

TEST(PartBytes, GrowWithTheObjectInSteps) {
  EXPECT_EQ(part_bytes_of(0), 8 << 20);
  EXPECT_EQ(part_bytes_of(9000LL * (8 << 20)), 8 << 20);
  EXPECT_EQ(part_bytes_of(9000LL * (8 << 20) + 1), 12 << 20);
  EXPECT_LE((std::int64_t{48} << 40) / part_bytes_of(std::int64_t{48} << 40), 9000);
}

TEST(UploadNotes, AreReadAsWritten) {
  const UploadNote note{"run", "holder", {{"/a b", 5, 8 << 20, true, "up load"}, {"", 7, 8 << 20}}};
  const auto read = parse_upload_note(note.text());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->text(), note.text());
  EXPECT_EQ(read->files[0].path, "/a b");
  EXPECT_EQ(read->files[0].upload, "up load");
  const std::string text = note.text();
  for (std::size_t end = 0; end < text.size(); ++end) EXPECT_FALSE(parse_upload_note(text.substr(0, end))) << end;
  EXPECT_FALSE(parse_upload_note("shardctl.uploads/1\nrun r\nholder h\n1 2 0 99999999999999999999 x y\nend\n"));
}

TEST(ObjectChecks, HaveKnownValues) {
  EXPECT_EQ(crc32c_text(0xe3069283U), "4waSgw==");
  EXPECT_EQ(md5_hex({}), "d41d8cd98f00b204e9800998ecf8427e");
}

}  // namespace
}  // namespace shard

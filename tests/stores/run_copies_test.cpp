// Files of an output in an object store, of which the store copies runs from other objects itself.
#include "libshard/io/run_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "libshard/stores/object_output.h"
#include "tests/stores/memory_bucket.h"
#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using BucketFailure = testing::MemoryBucket::Failure;
using ::testing::IsEmpty;

constexpr std::int64_t kSkipped = 7, kSourceBytes = (16 << 20) + 3, kLeastSent = 5 << 20;
const std::string kIn = "s3://b/in", kTo = "s3://b/to";

class RunCopies : public ::testing::Test {
 protected:
  RunCopies() {
    std::string source(kSourceBytes, '\0');
    for (std::size_t i = 0; i < source.size(); i += 61) source[i] = static_cast<char>(i / 61);
    objects.objects[kIn] = {
        .bytes = {test::as_span(source).begin(), test::as_span(source).end()}, .etag = "first", .run = ""};
    objects.listed_etag = "first";
    put_header(1000);
  }

  void put_header(std::size_t bytes) {
    const std::vector<std::byte>& source = objects.objects.at(kIn).bytes;
    header.assign(bytes, 'h');
    wanted = header + test::as_text(source).substr(kSkipped);
  }

  /// Writes a file of a header and a run of the source, and a marker. \returns the bytes that the store copied
  std::int64_t write(ObjectOutputOptions options = {}, OutputFile file = {"a", 0, false, true}) {
    const auto store = object_output(objects, kTo, {}, options);
    std::unique_ptr<LeftOutput> left = options.resume ? store->find_left() : nullptr;
    file.bytes = std::ssize(wanted);
    const std::vector<OutputFile> named{file, {".metadata", 1, false, true}};
    const auto output = store->begin(named, true, std::move(left));
    const auto part = store->part(output->token());
    FileWriter& to = part->create(named[0]);
    to.write_at(0, test::as_span(header));
    const std::vector<SourceRun> runs{{kIn, kSkipped, std::ssize(header), kSourceBytes - kSkipped, is_read}};
    const std::vector<ByteRange> copied = dynamic_cast<RunCopier&>(to).copy_runs(runs, {});
    std::int64_t bytes = 0, at = std::ssize(header);
    for (const ByteRange& range : copied) {
      write_until(to, at, range.begin);
      at = range.end;
      bytes += range.end - range.begin;
    }
    write_until(to, at, std::ssize(wanted));
    part->create(named[1]).write_at(0, test::as_span("m"));
    part->finish();
    output->accept(part->receipt());
    output->commit();
    return bytes;
  }

  void write_until(FileWriter& to, std::int64_t begin, std::int64_t end) const {
    const auto bytes =
        test::as_span(wanted).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    if (!bytes.empty()) to.write_at(begin, bytes);
  }
  void expect_written() const {
    ASSERT_TRUE(objects.objects.contains(kTo + "/a"));
    EXPECT_TRUE(objects.text(kTo + "/a") == wanted);
    EXPECT_THAT(objects.uploads, IsEmpty());
    EXPECT_EQ(objects.objects.size(), 3U);
  }
  int count(const std::string& line) const { return static_cast<int>(std::ranges::count(objects.log, line)); }
  void reset() {
    std::erase_if(objects.objects, [](const auto& each) { return each.first != kIn; });
    objects.uploads.clear();
    objects.log.clear();
    objects.is_dead = false;
    objects.failure = BucketFailure::kNone;
    objects.parts_stored = 0;
  }

  testing::MemoryBucket objects;
  std::string header, wanted;
  bool is_read = false;  ///< Whether the process needs the bytes of the run.
};

TEST_F(RunCopies, PassOnlyTheHeaderAndTheLeastPartThroughTheClient) {
  EXPECT_EQ(write(), std::ssize(wanted) - kLeastSent);
  EXPECT_EQ(objects.parts_stored, 1);
  expect_written();
}

TEST_F(RunCopies, AreKnownBeforeAnythingIsWritten) {
  const std::vector<SourceRun> runs{{kIn, kSkipped, std::ssize(header), kSourceBytes - kSkipped}};
  const auto bytes_to = [&](const std::string& destination) {
    std::int64_t bytes = 0;
    for (const ByteRange& range : object_output(objects, destination, {}, {})->would_copy(std::ssize(wanted), runs)) {
      bytes += range.end - range.begin;
    }
    return bytes;
  };
  const std::int64_t known = bytes_to(kTo);
  EXPECT_EQ(bytes_to("gs://b/other"), 0);
  EXPECT_EQ(write(), known);
}

/// A part of the header is sent before the copies begin, and remains.
TEST_F(RunCopies, FollowAHeaderOfSeveralParts) {
  for (const std::size_t bytes : {(8U << 20), (17U << 20) + 5}) {
    reset();
    put_header(bytes);
    EXPECT_GE(write(), std::ssize(wanted) - static_cast<std::int64_t>(bytes) - kLeastSent);
    expect_written();
  }
}

TEST_F(RunCopies, AreWrittenOrdinarilyIfTheStoreCannotCopy) {
  objects.copies = false;
  EXPECT_EQ(write({.connections = 1}), 0);
  EXPECT_EQ(count("copy s3://b/to/a"), 1) << "it is asked once";
  expect_written();
}

TEST_F(RunCopies, AreWrittenOrdinarilyIfTheStoreCopiesOtherRanges) {
  objects.ignores_ranges = true;
  EXPECT_EQ(write(), 0);
  expect_written();
}

/// The first of three parts contains the header.
TEST_F(RunCopies, AreCopiedInsteadOfSentIfTheFilePassesItsBlocks) {
  std::atomic<int> blocks{0};
  OutputFile file{"a", 0, false, true};
  file.on_block = [&](std::int64_t, std::span<const std::byte>) { ++blocks; };
  EXPECT_EQ(write({}, file), 0);
  EXPECT_EQ(blocks, 5);
  EXPECT_EQ(objects.parts_stored, 1);
  EXPECT_EQ(count("copy s3://b/to/a"), 2);
  expect_written();
}

TEST_F(RunCopies, AreCopiedInsteadOfSentIfTheyAreRead) {
  is_read = true;
  EXPECT_EQ(write(), 0);
  EXPECT_EQ(objects.parts_stored, 1);
  EXPECT_EQ(count("copy s3://b/to/a"), 2);
  expect_written();
}

TEST_F(RunCopies, ThatAreReadAreSentIfTheStoreCannotCopyThem) {
  is_read = true;
  for (const bool knows_call : {false, true}) {
    reset();
    objects.copies = knows_call;
    objects.ignores_ranges = true;
    EXPECT_EQ(write({.connections = 1}), 0);
    EXPECT_EQ(objects.parts_stored, 3);
    EXPECT_EQ(count("copy s3://b/to/a"), 1) << "it is asked once";
    expect_written();
  }
}

TEST_F(RunCopies, ThatAreReadAndDifferFromTheCopyAreErrors) {
  is_read = true;
  objects.objects[kIn].bytes.back() ^= std::byte{1};  // Without a new ETag.
  test::expect_error(ErrorCode::kCorruption, "changed while", [&] { write(); });
  EXPECT_EQ(objects.objects.size(), 1U);
}

TEST_F(RunCopies, ThatAreReadAreKeptByTheRunThatContinues) {
  is_read = true;
  write();
  const auto completed = std::ranges::find(objects.log, "complete s3://b/to/a");
  const auto at = static_cast<int>(completed - objects.log.begin());
  reset();
  objects.failure = BucketFailure::kKill;
  objects.fails_at = at;
  EXPECT_THROW(write(), Error);
  objects.is_dead = false;
  objects.failure = BucketFailure::kNone;
  objects.log.clear();
  objects.parts_stored = 0;
  write({.resume = true});
  EXPECT_EQ(objects.parts_stored, 0);
  EXPECT_EQ(count("copy s3://b/to/a"), 0);
  expect_written();
}

TEST_F(RunCopies, OfASourceThatChangedAreErrors) {
  objects.objects[kIn].etag = "second";
  const Error error = test::error_of([&] { write(); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.file(), kIn);
  EXPECT_THAT(objects.uploads, IsEmpty());
  EXPECT_EQ(objects.objects.size(), 1U);
}

TEST_F(RunCopies, KilledBeforeAnyRequestCanBeContinued) {
  write();
  const auto requests = static_cast<int>(objects.log.size());
  for (int i = 0; i < requests; ++i) {
    SCOPED_TRACE(i);
    reset();
    objects.failure = BucketFailure::kKill;
    objects.fails_at = i;
    try {
      write();
    } catch (const Error&) {
    }
    objects.is_dead = false;
    objects.failure = BucketFailure::kNone;
    const bool was_whole = objects.objects.contains(kTo + "/.metadata") && !objects.objects.contains(kTo + ".shardctl");
    if (!was_whole) write({.resume = true});
    expect_written();
  }
}

/// The parts of the completed object are not those of the run that continues.
TEST_F(RunCopies, AfterTheObjectWasCompletedCanBeContinuedWithBlocks) {
  write();
  const auto completed = std::ranges::find(objects.log, "complete s3://b/to/a");
  ASSERT_NE(completed, objects.log.end());
  const auto next = static_cast<int>(completed - objects.log.begin()) + 1;
  for (const bool is_same : {true, false}) {
    reset();
    objects.failure = BucketFailure::kKill;
    objects.fails_at = next;
    EXPECT_THROW(write(), Error);
    objects.is_dead = false;
    objects.failure = BucketFailure::kNone;
    objects.parts_stored = 0;
    OutputFile file{"a", 0, false, true};
    file.on_block = [](std::int64_t, std::span<const std::byte>) {};
    if (is_same) {
      write({.resume = true}, file);
      expect_written();
      EXPECT_EQ(objects.parts_stored, 0);
    } else {
      objects.objects.at(kTo + "/a").bytes.back() ^= std::byte{1};
      test::expect_error(ErrorCode::kResource, "with different bytes", [&] { write({.resume = true}, file); });
    }
  }
}

TEST_F(RunCopies, WithALostAnswerAboutCopiesAreComplete) {
  write();
  const std::vector<std::string> log = objects.log;
  for (int i = 0; i < static_cast<int>(log.size()); ++i) {
    const std::string& line = log[static_cast<std::size_t>(i)];
    if (!line.starts_with("copy") && !line.starts_with("parts")) continue;
    SCOPED_TRACE(line);
    reset();
    objects.failure = BucketFailure::kLost;
    objects.fails_at = i;
    ASSERT_NO_THROW(write()) << objects.log.back();
    expect_written();
  }
}

}  // namespace
}  // namespace shard

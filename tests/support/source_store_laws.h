/// \file
/// The requirements for every SourceStore and its readers, as tests over the stores that a program instantiates:
///
///   INSTANTIATE_TEST_SUITE_P(Posix, SourceStoreLaws, ::testing::Values(make_posix_subject));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libshard/io/source_store.h"
#include "tests/support/expect_error.h"

namespace shard::testing {

/// A store and a folder in it.
class SourceSubject {
 public:
  virtual ~SourceSubject() = default;
  /// Writes a file below the folder. \pre `store` was not called yet
  virtual void put(const std::string& name, const std::string& content) = 0;
  virtual const SourceStore& store() = 0;
  virtual std::string folder() const = 0;
  /// Whether folders can be listed. A web server's files are found only by their names.
  virtual bool can_list() const { return true; }
};
using MakeSourceSubject = std::unique_ptr<SourceSubject> (*)();

/// Files below the folder: "x" (10 digits), "sub/y" (1 byte), "sub/deep/z" (100,000 bytes), "empty", and a name with
/// characters that URLs encode.
class SourceStoreLaws : public ::testing::TestWithParam<MakeSourceSubject> {
 protected:
  SourceStoreLaws() {
    subject->put("x", "0123456789");
    subject->put("sub/y", "y");
    subject->put("sub/deep/z", long_text());
    subject->put("empty", "");
    subject->put(kOdd, "umlaut");
  }
  static std::string long_text() {
    std::string text(100'000, '\0');
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 256);
    return text;
  }

  const SourceStore& store() { return subject->store(); }
  std::string path(const std::string& name) const { return subject->folder() + "/" + name; }
  std::string read(const RandomReader& file, std::int64_t offset, std::size_t bytes) {
    std::string text(bytes, '\0');
    file.read_at(offset, std::as_writable_bytes(std::span(text)));
    return text;
  }

  static constexpr const char* kOdd = "\xc3\xbc + %20";
  const std::unique_ptr<SourceSubject> subject = GetParam()();
};

TEST_P(SourceStoreLaws, AFileHasAKindASizeAndTheIdentityOfItsReader) {
  const FileStatus file = store().status(path("x"));
  EXPECT_EQ(file.kind, FileKind::kFile);
  EXPECT_EQ(file.bytes, 10);
  const auto reader = store().open(path("x"));
  EXPECT_EQ(reader->size(), 10);
  EXPECT_EQ(reader->name(), path("x"));
  EXPECT_EQ(reader->identity(), file.identity());
  EXPECT_TRUE(is_same(file, store().status(path("x"))));
  EXPECT_FALSE(is_same(file, store().status(path("sub/y"))));
}

TEST_P(SourceStoreLaws, FoldersAreKnownWithAndWithoutASlashAtTheirEnd) {
  if (!subject->can_list()) return;
  for (const char* const name : {"", "sub", "sub/", "sub/deep"}) {
    EXPECT_EQ(store().status(path(name)).kind, FileKind::kFolder) << name;
  }
}

TEST_P(SourceStoreLaws, WhatDoesNotExistIsAbsentAlsoBelowAFile) {
  for (const char* const name : {"absent", "absent.bin", "sub/absent", "absent/x", "x/below"}) {
    EXPECT_EQ(store().status(path(name)).kind, FileKind::kAbsent) << name;
  }
}

TEST_P(SourceStoreLaws, AFolderIsListedSortedAndOneLevelDeep) {
  if (!subject->can_list()) return;
  EXPECT_THAT(store().list(subject->folder()), ::testing::ElementsAre("empty", "sub", "x", kOdd));
  EXPECT_THAT(store().list(path("sub")), ::testing::ElementsAre("deep", "y"));
}

TEST_P(SourceStoreLaws, ListingAFileOrNothingIsNotFound) {
  for (const char* const name : {"absent", "x"}) {
    const Error error = test::error_of([&] { store().list(path(name)); });
    EXPECT_EQ(error.code(), ErrorCode::kNotFound) << name;
    EXPECT_EQ(error.file(), path(name));
  }
}

TEST_P(SourceStoreLaws, OpeningAFolderOrNothingIsNotFound) {
  for (const char* const name : {"absent", "sub/absent", "x/below", "sub"}) {
    if (!subject->can_list() && std::string(name) == "sub") continue;
    const Error error = test::error_of([&] { store().open(path(name)); });
    EXPECT_EQ(error.code(), ErrorCode::kNotFound) << name;
    EXPECT_EQ(error.file(), path(name));
  }
}

TEST_P(SourceStoreLaws, AnyRangeOfAFileIsRead) {
  const auto file = store().open(path("sub/deep/z"));
  const std::string content = long_text();
  EXPECT_EQ(file->size(), std::ssize(content));
  for (const std::int64_t begin : {0, 1, 4095, 65'535, 65'536, 70'000, 99'999, 100'000}) {
    for (const std::int64_t bytes : {0, 1, 5000, 34'465, 100'000}) {
      if (begin + bytes > std::ssize(content)) continue;
      const auto count = static_cast<std::size_t>(bytes);
      EXPECT_TRUE(read(*file, begin, count) == content.substr(static_cast<std::size_t>(begin), count))
          << begin << " " << bytes;
    }
  }
}

TEST_P(SourceStoreLaws, RangesAreReadTogetherInAnyOrder) {
  const auto file = store().open(path("sub/deep/z"));
  const std::string content = long_text();
  const std::vector<std::pair<std::int64_t, std::size_t>> wanted{{90'000, 10'000}, {5, 0}, {0, 3}, {89'000, 2000}};
  std::vector<std::string> found;
  for (const auto& [begin, bytes] : wanted) found.emplace_back(bytes, '\0');
  std::vector<RangedRead> ranges;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ranges.push_back({wanted[i].first, std::as_writable_bytes(std::span(found[i]))});
  }
  file->read_many(ranges);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_TRUE(found[i] == content.substr(static_cast<std::size_t>(wanted[i].first), wanted[i].second)) << i;
  }
}

TEST_P(SourceStoreLaws, ReadingPastTheEndIsTruncation) {
  const auto file = store().open(path("x"));
  for (const auto& [begin, bytes] : {std::pair(8, 3), {10, 1}, {0, 11}, {5000, 1}}) {
    const Error error = test::error_of([&] { read(*file, begin, static_cast<std::size_t>(bytes)); });
    EXPECT_EQ(error.code(), ErrorCode::kCorruption) << begin;
    EXPECT_EQ(error.kind(), FindingKind::kTruncated) << begin;
    EXPECT_EQ(error.file(), path("x"));
  }
  EXPECT_EQ(read(*file, 6, 4), "6789") << "the reader still works";
}

TEST_P(SourceStoreLaws, AnEmptyFileIsAFile) {
  EXPECT_EQ(store().status(path("empty")).kind, FileKind::kFile);
  const auto file = store().open(path("empty"));
  EXPECT_EQ(file->size(), 0);
  EXPECT_EQ(read(*file, 0, 0), "");
}

TEST_P(SourceStoreLaws, NamesMayHaveCharactersThatUrlsEncode) {
  if (!subject->can_list()) return;  // The user encodes the address of a web page.
  EXPECT_EQ(read(*store().open(path(kOdd)), 0, 6), "umlaut");
}

TEST_P(SourceStoreLaws, AFileBelowAFolderIsOpenedByItsRelativeName) {
  const auto file = store().open_below(subject->folder(), "sub/deep/z");
  EXPECT_EQ(file->name(), path("sub/deep/z"));
  EXPECT_EQ(file->size(), 100'000);
  const Error error = test::error_of([&] { store().open_below(subject->folder(), "absent"); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
}

TEST_P(SourceStoreLaws, RelativeNamesThatLeadOutAreRefused) {
  for (const char* const name : {"../x", "/x", "sub/../x", "sub/../../x", "./x", "sub//y", "sub/", "", ".."}) {
    test::expect_error(ErrorCode::kCorruption, "points outside", [&] { store().open_below(path("sub"), name); });
  }
}

TEST_P(SourceStoreLaws, AReaderIsUsedByManyThreadsAndTheStoreToo) {
  const std::string content = long_text();
  const auto file = store().open(path("sub/deep/z"));
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const std::size_t begin = i * 9'001;
      EXPECT_TRUE(read(*file, static_cast<std::int64_t>(begin), 30'000) == content.substr(begin, 30'000)) << i;
      EXPECT_EQ(read(*store().open(path("x")), static_cast<std::int64_t>(i), 1), std::to_string(i));
      EXPECT_EQ(store().status(path("absent")).kind, FileKind::kAbsent);
    });
  }
}

}  // namespace shard::testing

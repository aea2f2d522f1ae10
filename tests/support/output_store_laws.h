/// \file
/// The requirements for every OutputStore and its outputs, as tests over the stores that a program instantiates:
///
///   INSTANTIATE_TEST_SUITE_P(Posix, OutputStoreLaws, ::testing::Values(make_posix_subject));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "libshard/io/output.h"
#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"

namespace shard::testing {

/// A place with one destination.
class OutputSubject {
 public:
  using Files = std::map<std::string, std::string>;  ///< Names below the destination; "" is the destination itself.

  virtual ~OutputSubject() = default;
  /// A store for the destination. \param is_root  false: it only writes parts
  virtual std::unique_ptr<OutputStore> store(bool force, bool is_root = true) = 0;
  /// Everything that is visible at the destination, below it, and beside it: companions and leftovers have the rest of
  /// their name after that of the destination ("/a", ".manifest.json", ".lock").
  virtual Files visible() = 0;
  /// Writes a file as a different program would. \param end  the key in `visible`
  virtual void put(const std::string& end, const std::string& content) = 0;
};
using MakeOutputSubject = std::unique_ptr<OutputSubject> (*)();

class OutputStoreLaws : public ::testing::TestWithParam<MakeOutputSubject> {
 protected:
  using Contents = std::vector<std::pair<std::string, std::string>>;  ///< Names and contents of files.

  /// An output whose files are written by one rank, and not committed yet.
  struct Written {
    std::unique_ptr<OutputStore> store;
    std::unique_ptr<Output> output;
    void commit() const {
      output->prepare();
      output->commit();
    }
  };

  static OutputFile declared(const std::string& name, const std::string& content) {
    return {name, std::ssize(content), name == kCompanionSuffix, true};
  }
  static std::vector<OutputFile> declared(const Contents& contents) {
    std::vector<OutputFile> files;
    for (const auto& [name, content] : contents) files.push_back(declared(name, content));
    return files;
  }

  Written write(const Contents& contents, bool force = false, bool is_folder = true) const {
    Written made{subject->store(force), nullptr};
    const std::vector<OutputFile> files = declared(contents);
    made.output = made.store->begin(files, is_folder);
    write_part(*made.store, *made.output, contents);
    return made;
  }

  /// Writes whole files by a part of `store`.
  static void write_part(OutputStore& store, Output& output, const Contents& contents) {
    const auto part = store.part(output.token());
    for (const auto& [name, content] : contents) write_backwards(part->create(declared(name, content)), content);
    end_part(store, output, *part);
  }
  static void write_backwards(FileWriter& to, const std::string& content) {
    constexpr std::size_t kPiece = 3;
    for (std::size_t end = content.size(); end > 0; end -= std::min(end, kPiece)) {
      const std::size_t begin = end - std::min(end, kPiece);
      to.write_at(static_cast<std::int64_t>(begin), test::as_span(content).subspan(begin, end - begin));
    }
  }
  static void end_part(OutputStore& store, Output& output, OutputPart& part) {
    part.finish();
    if (store.traits().has_receipts) output.accept(part.receipt());
  }

  const Contents given{{"a", "first file"}, {".metadata", "marker"}, {"sub/b", "second"}, {"empty", ""}};
  const OutputSubject::Files expected{
      {"/a", "first file"}, {"/.metadata", "marker"}, {"/sub/b", "second"}, {"/empty", ""}};
  const std::unique_ptr<OutputSubject> subject = GetParam()();
};

TEST_P(OutputStoreLaws, NothingIsAtTheDestinationBeforeTheCommit) {
  const Written written = write(given);
  written.output->prepare();
  for (const auto& [end, content] : subject->visible()) EXPECT_FALSE(end.empty() || end.starts_with('/')) << end;
}

TEST_P(OutputStoreLaws, TheCommitShowsAllFilesAndNothingElse) {
  {
    const Written written = write(given);
    written.commit();
  }
  EXPECT_EQ(subject->visible(), expected);
}

TEST_P(OutputStoreLaws, CommittingPreparesIfThatWasNotDone) {
  write(given).output->commit();
  EXPECT_EQ(subject->visible(), expected);
}

TEST_P(OutputStoreLaws, BytesThatWereNotWrittenAreZeros) {
  const auto store = subject->store(false);
  const OutputFile file{"a", 5, false, true};
  const auto output = store->begin(std::span(&file, 1), true);
  const auto part = store->part(output->token());
  part->create(file).write_at(3, test::as_span("x"));
  end_part(*store, *output, *part);
  output->commit();
  EXPECT_EQ(subject->visible().at("/a"), (std::string{'\0', '\0', '\0', 'x', '\0'}));
}

TEST_P(OutputStoreLaws, AnAbortedOutputLeavesNothing) {
  const Written written = write(given);
  written.output->abort();
  EXPECT_THAT(subject->visible(), ::testing::IsEmpty());
}

TEST_P(OutputStoreLaws, AnOutputThatIsDestroyedLeavesNothingAndCanBeWrittenAgain) {
  write(given);
  EXPECT_THAT(subject->visible(), ::testing::IsEmpty());
  write(given).commit();
  EXPECT_EQ(subject->visible(), expected);
}

TEST_P(OutputStoreLaws, AnExistingDestinationIsRefusedAndStays) {
  for (const char* const end : {"/a", ""}) {
    const std::unique_ptr<OutputSubject> other = GetParam()();
    other->put(end, "old");
    const Error error = test::error_of([&] {
      const OutputFile file{"new", 1, false, true};
      other->store(false)->begin(std::span(&file, 1), true);
    });
    EXPECT_EQ(error.code(), ErrorCode::kExists) << end;
    EXPECT_THAT(error.suggestions(), ::testing::ElementsAre(Suggestion{Remedy::kReplaceDestination}));
    EXPECT_EQ(other->visible(), (OutputSubject::Files{{end, "old"}}));
  }
}

TEST_P(OutputStoreLaws, WithForceTheDestinationIsReplacedAsAWhole) {
  subject->put("/a", "old");
  subject->put("/gone/c", "old");
  write(given, true).commit();
  EXPECT_EQ(subject->visible(), expected);
}

TEST_P(OutputStoreLaws, WithForceAFileIsReplacedByAFolderAndBack) {
  subject->put("", "old");
  write(given, true).commit();
  EXPECT_EQ(subject->visible(), expected);
  write({{"one", "new"}}, true, false).commit();
  EXPECT_EQ(subject->visible(), (OutputSubject::Files{{"", "new"}}));
}

TEST_P(OutputStoreLaws, WithForceTheOldDestinationStaysUntilTheCommit) {
  subject->put("/a", "old");
  {
    const Written written = write(given, true);
    written.output->prepare();
    EXPECT_EQ(subject->visible().at("/a"), "old");
  }
  EXPECT_EQ(subject->visible(), (OutputSubject::Files{{"/a", "old"}}));
}

TEST_P(OutputStoreLaws, ADestinationThatAppearsMeanwhileIsNotReplaced) {
  {
    const Written written = write({{".metadata", "new"}});
    subject->put("/.metadata", "theirs");
    const Error error = test::error_of([&] { written.output->commit(); });
    EXPECT_EQ(error.code(), ErrorCode::kExists);
  }
  EXPECT_EQ(subject->visible(), (OutputSubject::Files{{"/.metadata", "theirs"}}));
}

TEST_P(OutputStoreLaws, ASingleFileTakesTheDestinationsNameAndItsCompanionIsBesideIt) {
  write({{"ignored", "content"}, {std::string(kCompanionSuffix), "manifest"}}, false, false).commit();
  EXPECT_EQ(subject->visible(), (OutputSubject::Files{{"", "content"}, {std::string(kCompanionSuffix), "manifest"}}));
}

TEST_P(OutputStoreLaws, AnOldCompanionIsNeverLeftBesideANewFile) {
  write({{"ignored", "old"}, {std::string(kCompanionSuffix), "old"}}, false, false).commit();
  write({{"ignored", "new"}}, true, false).commit();
  EXPECT_EQ(subject->visible(), (OutputSubject::Files{{"", "new"}}));
}

TEST_P(OutputStoreLaws, NamesThatLeadOutAreRefusedAndNothingIsLeft) {
  for (const char* const name : {"../a", "/a", "x/../../a", "x//a", "./a", ""}) {
    test::expect_error(ErrorCode::kInvalidArgument, "not a file below", [&] { write({{name, "1"}}); });
    EXPECT_THAT(subject->visible(), ::testing::IsEmpty()) << name;
  }
}

TEST_P(OutputStoreLaws, ACommitIsTakenBack) {
  {
    const Written written = write(given);
    written.commit();
    written.output->take_back();
  }
  EXPECT_THAT(subject->visible(), ::testing::IsEmpty());
}

TEST_P(OutputStoreLaws, EachRankWritesFilesOfItsOwn) {
  const auto root = subject->store(false), other = subject->store(false, false);
  EXPECT_EQ(root->place(), other->place());
  const std::vector<OutputFile> files{{"a", 3, false, true}, {"b", 3}};
  const auto output = root->begin(files, true);
  const auto first = root->part(output->token()), second = other->part(output->token());
  write_backwards(first->create(files[0]), "one");
  write_backwards(second->create(files[1]), "two");
  end_part(*root, *output, *first);
  end_part(*other, *output, *second);
  output->commit();
  EXPECT_EQ(subject->visible(), (OutputSubject::Files{{"/a", "one"}, {"/b", "two"}}));
}

TEST_P(OutputStoreLaws, RanksWriteToOneFileUnlessItIsWrittenByItsOwnerOnly) {
  const auto root = subject->store(false), other = subject->store(false, false);
  const OutputFile file{"a", 6, false, true};
  const auto output = root->begin(std::span(&file, 1), true);
  const auto first = root->part(output->token()), second = other->part(output->token());
  FileWriter& own = first->create(file);
  own.write_at(0, test::as_span("one"));
  if (root->traits().whole_files) {
    EXPECT_THROW(second->open("a"), Error);
    own.write_at(3, test::as_span("two"));
  } else {
    second->open("a").write_at(3, test::as_span("two"));
  }
  end_part(*other, *output, *second);
  end_part(*root, *output, *first);
  output->commit();
  EXPECT_EQ(subject->visible().at("/a"), "onetwo");
}

TEST_P(OutputStoreLaws, WrittenBytesAreReadBackOrPassedInBlocks) {
  std::map<std::int64_t, std::string> blocks;
  std::mutex mutex;
  const auto store = subject->store(false);
  std::string content(static_cast<std::size_t>(kOutputBlock) + 7, 'b');
  content[3] = 'a';
  OutputFile file = declared("a", content);
  const bool passes_blocks = store->traits().passes_blocks;
  if (passes_blocks) {
    file.on_block = [&](std::int64_t block, std::span<const std::byte> bytes) {
      const std::scoped_lock lock(mutex);
      EXPECT_TRUE(blocks.emplace(block, test::as_text(bytes)).second) << block;
    };
  }
  const auto output = store->begin(std::span(&file, 1), true);
  const auto part = store->part(output->token());
  FileWriter& to = part->create(file);
  to.write_at(100, test::as_span(content).subspan(100));
  to.write_at(0, test::as_span(content).first(100));
  std::string back;
  if (passes_blocks) {
    part->pass_blocks();
    for (const auto& [block, bytes] : blocks) back += bytes;
  } else {
    back.resize(content.size());
    to.read_back(0, std::as_writable_bytes(std::span(back)));
  }
  EXPECT_TRUE(back == content);
  end_part(*store, *output, *part);
  output->commit();
  EXPECT_TRUE(subject->visible().at("/a") == content);
}

}  // namespace shard::testing

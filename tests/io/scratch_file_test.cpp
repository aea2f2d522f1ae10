#include "libshard/io/scratch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "libshard/io/local_disk.h"
#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_folder.h"

namespace shard {
namespace {

using test::ScopedVariable;
using test::TempFolder;

TEST(ScratchFile, GivesBackWhatIsWrittenAndHasNoName) {
  const TempFolder folder;
  const ScopedVariable variable("TMPDIR", folder.path());
  const ScratchFile file = make_scratch_file(1 << 20);
  EXPECT_EQ(file.reader->size(), 1 << 20);
  file.writer->write_at((1 << 20) - 5, test::as_span("hello"));
  std::string found(6, '?');
  file.reader->read_at((1 << 20) - 6, std::as_writable_bytes(std::span(found)));
  EXPECT_EQ(found, std::string("\0hello", 6));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ScratchFile, NeedsAFolderForTemporaryFiles) {
  const TempFolder folder;
  const ScopedVariable variable("TMPDIR", folder / "absent");
  EXPECT_EQ(test::error_of([] { make_scratch_file(1); }).code(), ErrorCode::kResource);
}

TEST(ScratchFile, ReservesItsSpace) {
  const TempFolder folder;
  const ScopedVariable variable("TMPDIR", folder.path());
  EXPECT_EQ(test::error_of([] { make_scratch_file(std::int64_t{1} << 60); }).code(), ErrorCode::kResource);
}

}  // namespace
}  // namespace shard

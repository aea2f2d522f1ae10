#include "libshard/core/error.h"

#include <gtest/gtest.h>

namespace shard {
namespace {

TEST(Error, CarriesWhatItWasBuiltWith) {
  try {
    throw Error(ErrorCode::kCorruption, "header ends after the file")
        .in_file("a.safetensors")
        .of_tensor("w")
        .because("the file was cut short")
        .hint("fetch it again")
        .expected(812)
        .found("600 bytes")
        .of_rank(3)
        .of_kind(FindingKind::kTruncated);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kCorruption);
    EXPECT_STREQ(e.what(), "header ends after the file");
    EXPECT_EQ(e.file(), "a.safetensors");
    EXPECT_EQ(e.tensor(), "w");
    EXPECT_EQ(e.why(), "the file was cut short");
    EXPECT_EQ(e.hint(), "fetch it again");
    EXPECT_EQ(e.expected(), "812");
    EXPECT_EQ(e.found(), "600 bytes");
    EXPECT_EQ(e.rank(), 3);
    EXPECT_EQ(e.kind(), FindingKind::kTruncated);
  }
}

TEST(Error, KeepsTheInnermostFile) {
  Error error(ErrorCode::kNotFound, "gone");
  error.in_file("inner").in_file("outer");
  EXPECT_EQ(error.file(), "inner");
}

TEST(Error, HasNothingByDefault) {
  const Error error(ErrorCode::kResource, "full");
  EXPECT_EQ(error.file() + error.tensor() + error.why() + error.hint() + error.expected() + error.found(), "");
  EXPECT_EQ(error.rank(), std::nullopt);
}

TEST(CodeName, IsAWordForEveryCode) {
  EXPECT_EQ(code_name(ErrorCode::kInvalidArgument), "invalid_argument");
  EXPECT_EQ(code_name(ErrorCode::kNotFound), "not_found");
  EXPECT_EQ(code_name(ErrorCode::kCorruption), "corruption");
  EXPECT_EQ(code_name(ErrorCode::kExists), "exists");
  EXPECT_EQ(code_name(ErrorCode::kResource), "resource");
  EXPECT_EQ(code_name(ErrorCode::kPeer), "peer");
  EXPECT_EQ(code_name(ErrorCode::kUnsupported), "unsupported");
  EXPECT_EQ(code_name(ErrorCode::kInterrupted), "interrupted");
}

}  // namespace
}  // namespace shard

#include "libshard/verify/verify_findings.h"

#include <gtest/gtest.h>

#include <string>

namespace shard {
namespace {

Error damage_in(const std::string& file) { return Error(ErrorCode::kCorruption, "damaged").in_file(file); }

TEST(VerifyFindings, FindingsBeyondTheLimitAreCountedUnlessTheirFileIsExplained) {
  VerifyFindings found({"/ckpt"});
  found.explain(damage_in("/ckpt/a"));
  for (std::size_t i = 1; i < VerifyFindings::kMost; ++i) found.report(damage_in("/ckpt/b"));
  found.report(damage_in("/ckpt/a"));
  EXPECT_EQ(found.left_out(), 0U);
  found.report(damage_in("/ckpt/b"));
  EXPECT_EQ(found.left_out(), 1U);
  found.clear();
  EXPECT_EQ(found.left_out(), 0U);
}

}  // namespace
}  // namespace shard

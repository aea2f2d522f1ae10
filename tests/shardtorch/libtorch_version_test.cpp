#include "shardtorch/c10d/libtorch_version.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace shard::test {
namespace {

TEST(LibTorchVersion, APlugInOfAnotherOneIsRefusedByName) {
  check_libtorch("gloo");
  constexpr std::uint64_t k2_11_0 = 0x020B000000000000, k2_15_1 = 0x020F010000000000;
  const Error error = error_of([] { check_libtorch("gloo", k2_11_0, k2_15_1); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_STREQ(error.what(), "backend 'gloo' is not available");
  EXPECT_EQ(error.why(), "its plug-in was built for LibTorch 2.11.0, but LibTorch 2.15.1 is loaded");
}

}  // namespace
}  // namespace shard::test

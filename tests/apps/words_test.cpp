#include <gtest/gtest.h>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/text/units.h"
#include "tests/support/expect_error.h"

namespace shard::app {
namespace {

TEST(ParseSize, TakesDecimalUnits) { EXPECT_EQ(parse_size("5GB", "--x"), 5'000'000'000); }
TEST(ParseSize, TakesBinaryUnits) { EXPECT_EQ(parse_size("5GiB", "--x"), 5'368'709'120); }
TEST(ParseSize, TakesPlainBytes) { EXPECT_EQ(parse_size("123", "--x"), 123); }
TEST(ParseSize, TakesFractionsAndAnyCase) { EXPECT_EQ(parse_size("1.5 kb", "--x"), 1500); }

TEST(ParseSize, RefusesOtherUnits) {
  test::expect_error(ErrorCode::kInvalidArgument, "--x '5 apples'", [] { parse_size("5 apples", "--x"); });
}
TEST(ParseSize, RefusesNegativeNumbers) {
  test::expect_error(ErrorCode::kInvalidArgument, "'-1'", [] { parse_size("-1", "--x"); });
}
TEST(ParseSize, RefusesMoreThan63Bits) {
  test::expect_error(ErrorCode::kInvalidArgument, "'10000000TB'", [] { parse_size("10000000TB", "--x"); });
}

TEST(HumanBytes, SaysSmallNumbersExactly) { EXPECT_EQ(human_bytes(999), "999 bytes"); }
TEST(HumanSeconds, HasTwoUnitsAtMost) {
  EXPECT_EQ(human_seconds(0.4), "0 s");
  EXPECT_EQ(human_seconds(59.4), "59 s");
  EXPECT_EQ(human_seconds(59.6), "1 min 0 s");
  EXPECT_EQ(human_seconds(12'005), "3 h 20 min");
  EXPECT_EQ(human_seconds(200'000), "2 d 7 h");
}

TEST(HumanBytes, HasThreeDigitsAtMost) {
  EXPECT_EQ(human_bytes(1600), "1.6 kB");
  EXPECT_EQ(human_bytes(999'600), "1 MB");
  EXPECT_EQ(human_bytes(16'060'522'496), "16.1 GB");
}

}  // namespace
}  // namespace shard::app

#include "libshard/core/parse_number.h"

#include <gtest/gtest.h>

namespace shard {
namespace {

TEST(ParseNumber, TakesTheWholeTextOrNothing) {
  EXPECT_EQ(parse_number("-12"), -12);
  EXPECT_EQ(parse_number("007"), 7);
  for (const char* text : {"", "-", "+1", " 1", "1 ", "1x", "0x1", "1.5"})
    EXPECT_EQ(parse_number(text), std::nullopt) << text;
}

TEST(ParseNumber, RefusesWhatItsTypeCannotHold) {
  EXPECT_EQ(parse_number("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse_number("9223372036854775808"), std::nullopt);
  EXPECT_EQ(parse_number<int>("2147483648"), std::nullopt);
}

TEST(ParseNumber, NaturalNumbersHaveNoSign) {
  EXPECT_EQ(parse_natural("0"), 0);
  EXPECT_EQ(parse_natural("-0"), std::nullopt);
}

TEST(ParseNumber, TakesTheFrontOfAText) {
  std::string_view text = "12.rest";
  EXPECT_EQ(take_natural(text), 12);
  EXPECT_EQ(text, ".rest");
  EXPECT_EQ(take_natural(text), std::nullopt);
  EXPECT_EQ(text, ".rest");
}

TEST(ParseNumber, ReadsFloats) { EXPECT_EQ(parse_number<double>("1e-3"), 0.001); }

}  // namespace
}  // namespace shard

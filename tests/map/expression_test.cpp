#include "libshard/map/documents/expression.h"

#include <gtest/gtest.h>

#include "libshard/core/error.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

std::int64_t value_of(std::string_view text) {
  return Expression::parse(text).evaluate([](std::string_view name) -> std::int64_t {
    return name == "n" ? 1000 : name == "tp" ? 4 : 7;
  });
}

TEST(Expression, FollowsPrecedenceAndParentheses) {
  EXPECT_EQ(value_of("1 + 2 * 3"), 7);
  EXPECT_EQ(value_of("(1 + 2) * 3"), 9);
  EXPECT_EQ(value_of("10 - 2 - 3"), 5);
  EXPECT_EQ(value_of("-n + 1"), -999);
}

TEST(Expression, DividesAsPythonDoes) {
  EXPECT_EQ(value_of("-7 // 2"), -4);
  EXPECT_EQ(value_of("-7 % 2"), 1);
  EXPECT_EQ(value_of("7 // -2"), -4);
  EXPECT_EQ(value_of("7 % -2"), -1);
  EXPECT_EQ(value_of("-7 % -2"), -1);
  EXPECT_EQ(value_of("(-9223372036854775807 - 1) % 3"), 1);
  EXPECT_EQ(value_of("(-9223372036854775807 - 1) % -1"), 0);
}

TEST(Expression, CallsMinMaxAndCeilTo) {
  EXPECT_EQ(value_of("max(1, tp//8, 3)"), 3);
  EXPECT_EQ(value_of("min(n, tp)"), 4);
  EXPECT_EQ(value_of("ceil_to(n, 128*tp)"), 1024);
  EXPECT_EQ(value_of("ceil_to(1024, 128*tp)"), 1024);
  EXPECT_EQ(value_of("ceil_to(-5, 4)"), -4);
}

TEST(Expression, RefusesWhatIsNotOne) {
  for (const char* text :
       {"", "1 +", "(1", "1)", "a b", "1 / 2", "abs(1)", "ceil_to(1)", "max()", "9223372036854775808", "1; 2"}) {
    EXPECT_EQ(test::error_of([&] { Expression::parse(text); }).code(), ErrorCode::kInvalidArgument) << text;
  }
}

double real_value_of(std::string_view text) {
  return Expression::parse_real(text).evaluate_real(
      [](std::string_view name) -> std::int64_t { return name == "hd" ? 128 : 3; });
}

TEST(Expression, OfRealNumbersMayHaveFractionsAndRoots) {
  EXPECT_EQ(real_value_of("1 / 8"), 0.125);
  EXPECT_EQ(real_value_of("1 / sqrt(2 * hd) + 0.5"), 0.5625);
  EXPECT_EQ(real_value_of("1 - x"), -2);
  EXPECT_EQ(real_value_of("7 // 2 + -7 % 4 + max(1e-1, 25e-1 - 2)"), 3 + 1 + 0.5);
  EXPECT_EQ(real_value_of("ceil_to(5.5, 4)"), 8);
  EXPECT_EQ(Expression::of_real(0.25).evaluate_real({}), 0.25);
}

TEST(Expression, OfRealNumbersIsRefusedIfItIsNotFinite) {
  for (const char* text : {"1 / (x - 3)", "sqrt(-x)", "1e300 * 1e300", "1e999", "sqrt(1, 2)", "sqrt()", "0x10"}) {
    EXPECT_EQ(test::error_of([&] { real_value_of(text); }).code(), ErrorCode::kInvalidArgument) << text;
  }
}

TEST(Expression, CopiesShareTheirContents) {
  const Expression first = Expression::parse("1" + std::string(500, ' ') + "+ n"), copy = first;
  EXPECT_EQ(&copy.text(), &first.text());
  EXPECT_LE(sizeof(Expression), 2 * sizeof(void*));
}

TEST(Expression, RefusesDeepAndLongTexts) {
  const std::string deep = std::string(100, '(') + "1" + std::string(100, ')');
  EXPECT_THROW(Expression::parse(deep), Error);
  EXPECT_THROW(Expression::parse(std::string(100, '-') + "1"), Error);
  EXPECT_THROW(Expression::parse("1" + std::string(2000, ' ')), Error);
}

TEST(Expression, RefusesOverflowAndDivisionByZero) {
  for (const char* text : {"9223372036854775807 + 1", "4611686018427387904 * 2", "1 // (tp - 4)", "1 % 0",
                           "ceil_to(1, 0)", "ceil_to(-9223372036854775806, -1)", "(-9223372036854775807 - 1) // -1",
                           "ceil_to(9223372036854775807, 2)", "-9223372036854775807 - 2"}) {
    EXPECT_EQ(test::error_of([&] { value_of(text); }).code(), ErrorCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace shard

// Names and shapes against those of a reference.
#include "libshard/export/reference_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/catalog/build.h"

namespace shard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Named {
  std::string name;
  test::Numbers shape;
};

Catalog catalog_of_named(const std::vector<Named>& tensors) {
  Catalog catalog;
  for (const Named& each : tensors) test::add_tensor(catalog, each.name, each.shape);
  return catalog;
}

ReferenceDifference compare(const std::vector<Named>& model, const std::vector<Named>& reference,
                            const std::set<std::string>& may_lack = {}) {
  const Catalog source = catalog_of_named(model), other = catalog_of_named(reference);
  const Selection selection = select(source, {});
  return compare_with_reference(selection.tensors, source, other, may_lack);
}

TEST(CompareWithReference, EqualNamesAndShapesDoNotDiffer) {
  EXPECT_TRUE(compare({{"a", {2}}, {"b", {2, 3}}}, {{"a", {2}}, {"b", {2, 3}}}).empty());
  EXPECT_TRUE(compare({}, {}).empty());
}

TEST(CompareWithReference, EveryDifferenceIsListed) {
  const ReferenceDifference found =
      compare({{"a", {2}}, {"b", {2, 3}}, {"d", {1}}}, {{"a", {3}}, {"b", {2, 3}}, {"c", {1}}, {"e", {1}}});
  EXPECT_THAT(found.missing, ElementsAre("c", "e"));
  EXPECT_THAT(found.unexpected, ElementsAre("d"));
  EXPECT_THAT(lines_of(found),
              ElementsAre("missing: c", "missing: e", "unexpected: d", "shape: a: expected [3], found [2]"));
}

TEST(CompareWithReference, WhatMayLackIsNotMissing) {
  EXPECT_TRUE(compare({{"a", {2}}}, {{"a", {2}}, {"lm_head.weight", {2}}}, {"lm_head.weight"}).empty());
}

TEST(GuessPrefix, APrefixThatMakesAllNamesFitIsFound) {
  const PrefixGuess strip = guess_prefix(compare({{"net.a.w", {1}}, {"net.b", {1}}}, {{"a.w", {1}}, {"b", {1}}}));
  EXPECT_EQ(strip.strip, "net.");
  const PrefixGuess add = guess_prefix(compare({{"a.w", {1}}, {"b", {1}}}, {{"net.a.w", {1}}, {"net.b", {1}}}));
  EXPECT_EQ(add.strip, "");
  EXPECT_EQ(add.add, "net.");
  const PrefixGuess none = guess_prefix(compare({{"net.a", {1}}}, {{"a", {1}}, {"b", {1}}}));
  EXPECT_EQ(none.strip + none.add, "");
}

TEST(GuessExclusions, AFewGlobsMatchOnlyTheUnexpectedNames) {
  using Views = std::vector<std::string_view>;
  const auto guess = [](const Views& unexpected, const Views& others) { return guess_exclusions(unexpected, others); };
  EXPECT_THAT(guess({"l.0.rotary.inv_freq", "l.11.rotary.inv_freq", "x[0]"}, {"l.0.q"}),
              ElementsAre("l.*.rotary.inv_freq", "x[[]0]"));
  EXPECT_THAT(guess({"s.ema.a", "s.ema.b", "s.ema.c", "s.ema.d", "s.ema.e"}, {"s.model.a"}), ElementsAre("s.ema.**"));
  EXPECT_THAT(guess({"a", "b", "c", "d", "e"}, {"f"}), ElementsAre());
  EXPECT_THAT(guess({"l.2.q"}, {"l.1.q"}), ElementsAre());
}

}  // namespace
}  // namespace shard

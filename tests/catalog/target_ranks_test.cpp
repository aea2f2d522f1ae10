// Names of which ranks have different values: the error and the option that skips them.

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "libshard/catalog/targets/target.h"
#include "tests/catalog/build.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

constexpr FormatTraits kTorchFile = {.name = "torch", .objects = true, .sharing = true, .aliases = true};
constexpr FormatTraits kItemFolder = {.name = "dcp", .pieces = true, .single_box_items = true, .objects = true};

/// Tensors that differ on two ranks, and others.
Catalog two_ranks(std::initializer_list<const char*> differing, std::initializer_list<const char*> others = {}) {
  Catalog source;
  for (const std::int32_t rank : {0, 1}) {
    for (const char* name : differing) source.tensors[test::add_tensor(source, name, {1})].rank = rank;
  }
  for (const char* name : others) test::add_tensor(source, name, {1});
  return source;
}

Error refusal_of(const Catalog& source, const Layout& layout, const FormatTraits& traits,
                 const SelectionOptions& options = {}) {
  return test::error_of([&] { make_target(source, select(source, options), layout, traits); });
}

void expect_one_choice(const Error& error, ErrorCode code) {
  EXPECT_EQ(error.code(), code);
  EXPECT_STREQ(error.what(), "ranks have different values of 'w'");
  EXPECT_EQ(error.why(), "there is no rule for choosing one of them");
  EXPECT_EQ(error.suggestions(), (std::vector{Suggestion{Remedy::kExclude, "w"}}));
}

TEST(TargetRanks, NoneOfTwoValuesIsChosen) {
  const Catalog source = two_ranks({"w"});
  expect_one_choice(refusal_of(source, WholeLayout{}, kTorchFile), ErrorCode::kCorruption);
  expect_one_choice(refusal_of(source, KeepLayout{}, kItemFolder), ErrorCode::kUnsupported);
}

TEST(TargetRanks, AllNamesAreCountedAndThoseOfOtherLayersSkippedTogether) {
  const Error error =
      refusal_of(two_ranks({"a.0.mean", "a.0.var", "a.1.mean", "a.1.var"}, {"w"}), WholeLayout{}, kTorchFile);
  EXPECT_STREQ(error.what(), "ranks have different values of 'a.0.mean', 'a.0.var', 'a.1.mean' and 1 more");
  EXPECT_EQ(error.suggestions(), (std::vector{Suggestion{Remedy::kExcludeMatching, "a.*.mean"}}));
}

TEST(TargetRanks, EqualValuesAreNotSkippedWithThem) {
  const Error error = refusal_of(two_ranks({"a.0.mean", "a.1.mean"}, {"a.2.mean"}), WholeLayout{}, kTorchFile);
  EXPECT_EQ(error.suggestions(), (std::vector{Suggestion{Remedy::kExclude, "a.0.mean"}}));
}

TEST(TargetRanks, TheSourcesNameIsSkipped) {
  const Error error = refusal_of(two_ranks({"model.w"}), WholeLayout{}, kTorchFile, {.strip_prefix = {"model."}});
  EXPECT_STREQ(error.what(), "ranks have different values of 'w'");
  EXPECT_EQ(error.suggestions(), (std::vector{Suggestion{Remedy::kExclude, "model.w"}}));
}

TEST(TargetRanks, PartsBesideFlatParametersAreNotSkipped) {
  const Error error = refusal_of(two_ranks({"a.weight"}, {"_flat_param"}), WholeLayout{}, kTorchFile);
  EXPECT_TRUE(error.suggestions().empty());
  EXPECT_EQ(error.hint(), "save with SHARDED_STATE_DICT or FULL_STATE_DICT instead of LOCAL_STATE_DICT");
}

}  // namespace
}  // namespace shard

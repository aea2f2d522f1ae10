// A million tensors stay cheap. The times are printed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "libshard/catalog/targets/target.h"
#include "tests/catalog/build.h"
#include "tests/support/cpu_time.h"

namespace shard {
namespace {

constexpr int kTensors = 1'000'000;
constexpr double kMostSeconds = 5;

Catalog million(bool sorted) {
  Catalog catalog;
  catalog.storages.reserve(kTensors);
  for (int i = 0; i < kTensors; ++i) {
    const int number = sorted ? i : static_cast<int>((std::int64_t{i} * 7919) % kTensors);
    test::add_tensor(catalog, fmt::format("model.layers.{:07}.mlp.weight", number), {4, 16});
  }
  return catalog;
}

template <class Action>
void expect_cheap(const char* what, const Action& action) {
  const double taken = test::cpu_seconds(action);
  fmt::print("{}: {:.3f} s\n", what, taken);
  EXPECT_LT(taken, test::cpu_limit(kMostSeconds)) << what;
}

TEST(CatalogSpeed, FinishesAMillionSortedTensors) {
  Catalog catalog = million(true);
  expect_cheap("validate_catalog, sorted", [&] { validate_catalog(catalog); });
}

TEST(CatalogSpeed, FinishesAMillionTensorsInAnyOrder) {
  Catalog catalog = million(false);
  expect_cheap("validate_catalog, not sorted", [&] { validate_catalog(catalog); });
  EXPECT_EQ(catalog.tensors[1].name, "model.layers.0000001.mlp.weight");
}

TEST(CatalogSpeed, FinishesAMillionViewsOfOneStorage) {
  Catalog catalog;
  const std::uint32_t storage = test::add_storage(catalog, kTensors + 64);
  for (int i = 0; i < kTensors; ++i) {
    test::add_view(catalog, fmt::format("w{:07}", i), storage, DType::kUint8, {4, 16}, {}, i);
  }
  expect_cheap("validate_catalog, one storage", [&] { validate_catalog(catalog); });
}

TEST(CatalogSpeed, MakesTargetsOfAMillionTensors) {
  Catalog catalog = million(true);
  validate_catalog(catalog);
  Selection selection;
  expect_cheap("select", [&] { selection = select(catalog, {}); });
  const FormatTraits whole{.name = "safetensors"};
  const FormatTraits torch{.name = "torch", .objects = true, .sharing = true, .aliases = true};
  const FormatTraits dcp{.name = "dcp", .pieces = true, .single_box_items = true, .objects = true};
  const auto make = [&](const Layout& layout, const FormatTraits& traits) {
    return [&catalog, &selection, layout, traits] { make_target(catalog, selection, layout, traits); };
  };
  expect_cheap("make_target, safetensors", make(SizeLayout{5'000'000'000}, whole));
  expect_cheap("make_target, torch", make(WholeLayout{}, torch));
  expect_cheap("make_target, dcp of 2 ranks", make(RanksLayout{2}, dcp));
}

TEST(CatalogSpeed, ChecksAGridOfAHundredThousandChunks) {
  Catalog catalog;
  std::vector<test::BoxOfRank> boxes;
  for (std::int64_t i = 0; i < 320; ++i) {
    for (std::int64_t j = 0; j < 320; ++j) boxes.push_back({{i, j}, {1, 1}, -1});
  }
  test::add_chunked(catalog, "w", {320, 320}, boxes);
  expect_cheap("validate_catalog, 102400 chunks", [&] { validate_catalog(catalog); });
}

}  // namespace
}  // namespace shard

#include "libshard/catalog/catalog.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "libshard/catalog/chunk_place.h"
#include "tests/catalog/build.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::add_chunked;
using test::add_object;
using test::add_storage;
using test::add_tensor;
using test::add_view;
using test::expect_error;
using test::names_of;
using ::testing::ElementsAre;

using Names = std::vector<std::string>;
constexpr std::int64_t kHuge = std::int64_t{1} << 62;

TEST(ValidateCatalog, SortsTensorsByNameBytewise) {
  Catalog catalog;
  for (const char* name : {"b", "a.10", "a.2", "B", ""}) add_tensor(catalog, name, {1});
  validate_catalog(catalog);
  EXPECT_EQ(names_of(catalog.tensors), (Names{"", "B", "a.10", "a.2", "b"}));
}

TEST(ValidateCatalog, SortsTensorsOfOneNameByRank) {
  Catalog catalog;
  for (const std::int32_t rank : {2, 0, 1}) catalog.tensors[add_tensor(catalog, "w", {1})].rank = rank;
  validate_catalog(catalog);
  EXPECT_EQ(catalog.tensors[0].rank, 0);
  EXPECT_EQ(catalog.tensors[2].rank, 2);
}

TEST(ValidateCatalog, SortsTensorsOfOneNameByPath) {
  for (const bool flat_first : {true, false}) {
    Catalog catalog;
    const Path nested = test::make_path(catalog, {"a", "b"});
    add_tensor(catalog, "a.b", {1}, DType::kFloat32, flat_first ? Path() : nested);
    add_tensor(catalog, "a.b", {1}, DType::kFloat32, flat_first ? nested : Path());
    for (const char* name : {"c", "a"}) add_tensor(catalog, name, {1});
    validate_catalog(catalog);
    EXPECT_TRUE(catalog.tensors[1].path.empty());
    EXPECT_EQ(catalog.tensors[2].path.size(), 2);
  }
}

TEST(ValidateCatalog, KeepsChunksWithTheirTensorsWhenItSorts) {
  Catalog catalog;
  add_tensor(catalog, "b", {2});
  add_tensor(catalog, "a", {3});
  validate_catalog(catalog);
  EXPECT_EQ(test::to_numbers(catalog.chunks_of(catalog.tensors[0])[0].sizes), test::Numbers{3});
}

TEST(ValidateCatalog, RenumbersTensorsOfTheTree) {
  Catalog catalog;
  Value* b = make_tensor(*catalog.arena, add_tensor(catalog, "b", {1}));
  Value* a = make_tensor(*catalog.arena, add_tensor(catalog, "a", {1}));
  Value* const items[] = {make_string(*catalog.arena, "b"), b, make_string(*catalog.arena, "a"), a};
  catalog.root = make_list(*catalog.arena, ValueKind::kDict, items);
  validate_catalog(catalog);
  EXPECT_EQ(a->number, 0);
  EXPECT_EQ(b->number, 1);
}

TEST(ValidateCatalog, RenumbersInAnyOrder) {
  Catalog catalog;
  std::vector<Value*> nodes;
  for (const char* name : {"b", "c", "a", "e", "d", "f"}) {
    nodes.push_back(make_tensor(*catalog.arena, add_tensor(catalog, name, {1})));
  }
  catalog.root = make_list(*catalog.arena, ValueKind::kList, nodes);
  validate_catalog(catalog);
  EXPECT_EQ(names_of(catalog.tensors), (Names{"a", "b", "c", "d", "e", "f"}));
  test::Numbers numbers;
  for (const Value* node : nodes) numbers.push_back(node->number);
  EXPECT_EQ(numbers, (test::Numbers{1, 2, 0, 4, 3, 5}));
}

/// Permutations from one cycle of all positions to many short ones.
TEST(ValidateCatalog, SortsRandomOrdersOfAnyLength) {
  std::mt19937 random(1);
  for (int count = 0; count < 300; count = count < 40 ? count + 1 : count * 2) {
    for (int swaps : {1, count / 2, count * 4}) {
      std::vector<std::int64_t> order(static_cast<std::size_t>(count));
      std::iota(order.begin(), order.end(), 0);
      for (int i = 0; count > 0 && i < swaps; ++i)
        std::swap(order[random() % order.size()], order[random() % order.size()]);
      Catalog catalog;
      for (const std::int64_t n : order) add_tensor(catalog, fmt::format("{:03}", n), {n + 1});
      validate_catalog(catalog);
      for (std::int64_t n = 0; n < count; ++n) {
        const Tensor& tensor = catalog.tensors[static_cast<std::size_t>(n)];
        ASSERT_EQ(tensor.name, fmt::format("{:03}", n)) << count << " tensors, " << swaps << " swaps";
        ASSERT_EQ(test::to_numbers(tensor.shape), test::Numbers{n + 1});
      }
    }
  }
}

TEST(ValidateCatalog, RenumbersANodeThatIsSharedOnce) {
  Catalog catalog;
  Value* c = make_tensor(*catalog.arena, add_tensor(catalog, "c", {1}));
  add_tensor(catalog, "a", {1});
  add_tensor(catalog, "b", {1});
  Value* const items[] = {c, c, c};
  catalog.root = make_list(*catalog.arena, ValueKind::kList, items);
  add_object(catalog, "o", catalog.root);
  validate_catalog(catalog);
  EXPECT_EQ(c->number, 2);
}

TEST(ValidateCatalog, EndsOnATreeThatHoldsItself) {
  Catalog catalog;
  add_tensor(catalog, "b", {1});
  add_tensor(catalog, "a", {1});
  Value* const items[] = {make_value(*catalog.arena, ValueKind::kNone)};
  catalog.root = make_list(*catalog.arena, ValueKind::kList, items);
  catalog.root->items()[0] = catalog.root;
  EXPECT_NO_THROW(validate_catalog(catalog));
}

TEST(ValidateCatalog, RefusesATreeThatIsTooDeep) {
  Catalog catalog;
  add_tensor(catalog, "b", {1});
  add_tensor(catalog, "a", {1});
  catalog.root = make_value(*catalog.arena, ValueKind::kNone);
  for (int i = 0; i < 300; ++i) catalog.root = make_list(*catalog.arena, ValueKind::kList, std::span(&catalog.root, 1));
  expect_error(ErrorCode::kCorruption, "deeper than 256", [&] { validate_catalog(catalog); });
}

TEST(ValidateCatalog, CountsTheBytesOfAFileOnceHoweverManyNamesItHas) {
  const auto validate = [](FileIdentity first, FileIdentity second) {
    Catalog catalog;
    catalog.files = {{"a", 1 << 20, -1, first}, {"b", 1 << 20, -1, second}};
    add_view(catalog, "w", add_storage(catalog, 4), DType::kFloat32, {1500 << 18}, {0});  // 1500 MiB.
    validate_catalog(catalog);
  };
  EXPECT_NO_THROW(validate({}, {}));
  EXPECT_NO_THROW(validate({1, 5}, {1, 6}));
  expect_error(ErrorCode::kCorruption, "the files have only 1048576", [&] { validate({1, 5}, {1, 5}); });
}

TEST(ValidateCatalog, NamesTheFirstOfEqualViewsAsAlias) {
  Catalog catalog;
  const std::uint32_t storage = add_storage(catalog, 64);
  for (const char* name : {"c", "a", "b"}) add_view(catalog, name, storage, DType::kFloat32, {4, 4});
  validate_catalog(catalog);
  EXPECT_EQ(catalog.tensors[0].alias_of, kNoIndex);
  EXPECT_EQ(catalog.tensors[1].alias_of, 0U);
  EXPECT_EQ(catalog.tensors[2].alias_of, 0U);
}

TEST(ValidateCatalog, TakesViewsThatDifferForNoAliases) {
  Catalog catalog;
  const std::uint32_t storage = add_storage(catalog, 64);
  add_view(catalog, "a", storage, DType::kFloat32, {2, 4});
  add_view(catalog, "first", storage, DType::kFloat32, {2, 4}, {4, 1}, 4);
  add_view(catalog, "strides", storage, DType::kFloat32, {2, 4}, {1, 2});
  add_view(catalog, "shape", storage, DType::kFloat32, {4, 2});
  add_view(catalog, "dtype", storage, DType::kInt32, {2, 4});
  validate_catalog(catalog);
  for (const Tensor& tensor : catalog.tensors) EXPECT_EQ(tensor.alias_of, kNoIndex) << tensor.name;
}

/// So many that they meet in the table by which equal views are found.
TEST(ValidateCatalog, TakesManyViewsThatDifferInOneWayForNoAliases) {
  Catalog catalog;
  const std::uint32_t storage = add_storage(catalog, 1 << 16);
  for (std::int64_t stride = 1; stride < 200; ++stride) {
    add_view(catalog, fmt::format("stride {}", stride), storage, DType::kFloat32, {2, 2}, {stride, 1});
  }
  for (std::int64_t first = 1; first < 100; ++first) {
    for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
      if (dtype_block(static_cast<DType>(dtype)).elements != 1) continue;
      add_view(catalog, fmt::format("{} {}", first, dtype), storage, static_cast<DType>(dtype), {2}, {1}, first);
    }
  }
  validate_catalog(catalog);
  for (const Tensor& tensor : catalog.tensors) EXPECT_EQ(tensor.alias_of, kNoIndex) << tensor.name;
}

TEST(ValidateCatalog, RefusesViewsThatClaimFarMoreThanIsStored) {
  Catalog catalog;
  add_view(catalog, "w", add_storage(catalog, 4), DType::kFloat32, {1 << 20, 1 << 20}, {0, 0});
  const Error error = test::error_of([&] { validate_catalog(catalog); });
  EXPECT_EQ(error.kind(), FindingKind::kOutOfBounds);
  EXPECT_EQ(error.file(), "file");
}

TEST(ValidateCatalog, SortsChunksByOffsetsThenRank) {
  Catalog catalog;
  add_chunked(catalog, "w", {4}, {{{2}, {2}, 1}, {{0}, {2}, 3}, {{0}, {2}, 0}});
  validate_catalog(catalog);
  const auto chunks = catalog.chunks_of(catalog.tensors[0]);
  EXPECT_EQ(catalog.stored[chunks[0].stored].rank, 0);
  EXPECT_EQ(catalog.stored[chunks[1].stored].rank, 3);
  EXPECT_EQ(catalog.stored[chunks[2].stored].rank, 1);
}

TEST(ValidateCatalog, AcceptsEmptyChunksPastTheEnd) {
  Catalog catalog;
  add_chunked(catalog, "w", {4}, {{{0}, {4}, 0}, {{6}, {0}, 1}});
  EXPECT_NO_THROW(validate_catalog(catalog));
}

TEST(ValidateCatalog, RefusesAChunkThatReachesPastTheEnd) {
  Catalog catalog;
  add_chunked(catalog, "w", {4}, {{{0}, {2}}, {{2}, {3}}});
  const Error error = test::error_of([&] { validate_catalog(catalog); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kOutOfBounds);
  EXPECT_EQ(error.tensor(), "w");
}

TEST(ValidateCatalog, RefusesAChunkThatBeginsBeforeTheTensor) {
  Catalog catalog;
  add_chunked(catalog, "w", {4}, {{{-1}, {2}}, {{1}, {3}}});
  EXPECT_EQ(test::error_of([&] { validate_catalog(catalog); }).kind(), FindingKind::kOutOfBounds);
}

TEST(ValidateCatalog, RefusesAChunkOfOtherDimensions) {
  Catalog catalog;
  add_chunked(catalog, "w", {4, 4}, {{{0}, {4}}});
  EXPECT_EQ(test::error_of([&] { validate_catalog(catalog); }).kind(), FindingKind::kShapeMismatch);
}

TEST(ValidateCatalog, RefusesASingleChunkThatIsNotTheWholeTensor) {
  Catalog catalog;
  add_chunked(catalog, "w", {4}, {{{0}, {3}}});
  EXPECT_EQ(test::error_of([&] { validate_catalog(catalog); }).kind(), FindingKind::kGap);
}

TEST(ValidateCatalog, RefusesATensorWithoutChunks) {
  Catalog catalog;
  add_chunked(catalog, "w", {4}, {});
  EXPECT_EQ(test::error_of([&] { validate_catalog(catalog); }).kind(), FindingKind::kGap);
}

TEST(ValidateCatalog, AcceptsAnEmptyTensorWithoutChunks) {
  Catalog catalog;
  add_chunked(catalog, "w", {0, 4}, {});
  EXPECT_NO_THROW(validate_catalog(catalog));
}

TEST(ValidateCatalog, RefusesAShapeWhoseProductOverflows) {
  Catalog catalog;
  add_chunked(catalog, "w", {kHuge, 4}, {});
  expect_error(ErrorCode::kCorruption, "63 bits", [&] { validate_catalog(catalog); });
}

TEST(AddWholeTensor, TakesAViewThatEndsWithItsStorage) {
  Catalog catalog;
  EXPECT_NO_THROW(add_view(catalog, "w", add_storage(catalog, 24), DType::kFloat32, {2, 2}, {3, 1}, 1));
}

TEST(AddWholeTensor, RefusesAViewThatLeavesItsStorage) {
  Catalog catalog;
  const std::uint32_t storage = add_storage(catalog, 23);
  expect_error(ErrorCode::kCorruption, "it needs 24 bytes, but its storage has only 23", [&] {
    add_view(catalog, "w", storage, DType::kFloat32, {2, 2}, {3, 1}, 1);
  });
}

TEST(AddWholeTensor, TakesExpandedViews) {
  Catalog catalog;
  EXPECT_NO_THROW(add_view(catalog, "w", add_storage(catalog, 4), DType::kFloat32, {1000, 1000}, {0, 0}));
}

TEST(AddWholeTensor, RefusesNegativeStrides) {
  Catalog catalog;
  const std::uint32_t storage = add_storage(catalog, 64);
  expect_error(ErrorCode::kCorruption, "must not be negative",
               [&] { add_view(catalog, "w", storage, DType::kFloat32, {4}, {-1}, 3); });
}

TEST(AddWholeTensor, RefusesStridesWhoseReachOverflows) {
  Catalog catalog;
  const std::uint32_t storage = add_storage(catalog, 64);
  expect_error(ErrorCode::kCorruption, "63 bits", [&] {
    add_view(catalog, "w", storage, DType::kFloat32, {5, 5}, {kHuge, 1});
  });
}

TEST(AddWholeTensor, TakesAnEmptyViewAnywhere) {
  Catalog catalog;
  EXPECT_NO_THROW(add_view(catalog, "w", add_storage(catalog, 0), DType::kFloat32, {0, 3}, {3, 1}, 99));
}

TEST(ChunkPlace, AnEmptyChunkIsAtTheBeginOfItsStorageWhateverItsNumbersAre) {
  Catalog catalog;
  const std::uint32_t storage = add_storage(catalog, 0);
  catalog.storages[storage].offset = 8;
  add_view(catalog, "w", storage, DType::kFloat32, {0, 3}, {1, kHuge}, kHuge);
  const ChunkPlace place = place_of(catalog, catalog.chunks[0]);
  EXPECT_TRUE(place.known);
  EXPECT_EQ(place.offset_bytes, 8);
  EXPECT_EQ(place.span_bytes, 0);
}

TEST(Catalog, ATensorOfOneChunkTakes192Bytes) {
  EXPECT_EQ(sizeof(Tensor) + sizeof(Chunk) + sizeof(StoredTensor) + sizeof(Storage), 192U);
}

TEST(Catalog, FindsByNameOrNot) {
  Catalog catalog;
  for (const char* name : {"b", "a"}) add_tensor(catalog, name, {1});
  validate_catalog(catalog);
  EXPECT_EQ(catalog.find("b"), &catalog.tensors[1]);
  EXPECT_EQ(catalog.find("ab"), nullptr);
  EXPECT_EQ(catalog.find("c"), nullptr);
}

TEST(Catalog, CountsAliasesOnceAndEachReplica) {
  Catalog catalog;
  const std::uint32_t storage = add_storage(catalog, 16);
  add_view(catalog, "a", storage, DType::kFloat32, {4});
  add_view(catalog, "b", storage, DType::kFloat32, {4});
  add_chunked(catalog, "c", {3}, {{{0}, {3}, 0}, {{0}, {3}, 1}});
  validate_catalog(catalog);
  EXPECT_EQ(catalog.logical_bytes(), 19);
  EXPECT_EQ(catalog.stored_bytes(), 22);
}

TEST(Aliases, OfTensorsInPiecesShareEveryPiece) {
  Catalog catalog;
  for (const char* name : {"a", "b", "c"}) add_chunked(catalog, name, {2}, {{{0}, {1}, 0}, {{1}, {1}, 1}});
  catalog.stored[2].storage = catalog.stored[4].storage = 0;
  catalog.stored[3].storage = 1;  // The dimension of "b", not of "c".
  validate_catalog(catalog);
  EXPECT_EQ(catalog.tensors[1].alias_of, 0U);
  EXPECT_EQ(catalog.tensors[2].alias_of, kNoIndex);
}

TEST(ValidateCatalog, TellsASinkThatCollectsTheFirstFindingOfEachTensor) {
  Catalog catalog;
  test::add_chunked(catalog, "a", {4}, {{{0}, {3}}});
  test::add_chunked(catalog, "b", {4, 4}, {{{0, 0}, {2, 2}}, {{2, 2}, {2, 2}}});
  test::add_chunked(catalog, "c", {4}, {{{0}, {3}}, {{2}, {2}}});
  test::add_chunked(catalog, "d", {4}, {{{2}, {3}}});
  test::add_chunked(catalog, "e", {4}, {{{0}, {2}}, {{2}, {2}}});
  test::add_chunked(catalog, "f", {4}, {});
  CollectedFindings findings;
  validate_catalog(catalog, findings);
  EXPECT_THAT(findings.kinds(), ElementsAre(FindingKind::kGap, FindingKind::kGap, FindingKind::kOverlap,
                                            FindingKind::kOutOfBounds, FindingKind::kGap));
  std::vector<std::string> damaged;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.damaged) damaged.emplace_back(tensor.name);
  }
  EXPECT_THAT(damaged, ElementsAre("a", "b", "c", "d", "f"));
}

}  // namespace
}  // namespace shard

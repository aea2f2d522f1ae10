// The builder: indices between the catalog's arrays, the budget's charges, and the roll-back of a mark.
#include "libshard/catalog/catalog_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/core/error.h"
#include "tests/catalog/build.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::Numbers;
using ::testing::ElementsAre;

Dims dims(Catalog& catalog, const Numbers& numbers) { return catalog.arena->dims(numbers); }

/// A storage of 1000 bytes with a row-major tensor of bytes. \returns the stored tensor's index.
std::uint32_t add_bytes(CatalogBuilder& builder, const Numbers& shape) {
  const std::uint32_t storage = builder.add_storage({.offset = 0, .bytes = 1000});
  return builder.add_row_major(storage, dims(builder.catalog(), shape), DType::kUint8, 3);
}

TEST(CatalogBuilder, ATensorHasTheChunksThatAreAddedBeforeTheNextOne) {
  Catalog catalog;
  CatalogBuilder builder(catalog);
  const std::uint32_t stored = add_bytes(builder, {4, 2});
  EXPECT_EQ(builder.begin("a", {}, DType::kUint8, dims(catalog, {4, 2})), 0U);
  builder.add_part(stored, Numbers{0, 0}, Numbers{1, 2}, Numbers{0, 0});
  builder.add_part(stored, Numbers{1, 0}, Numbers{3, 2}, Numbers{1, 0});
  EXPECT_EQ(builder.begin("b", {}, DType::kUint8, dims(catalog, {4, 2})), 1U);
  builder.add_whole(stored);
  EXPECT_EQ(catalog.chunks_of(catalog.tensors[0]).size(), 2U);
  EXPECT_EQ(catalog.chunks_of(catalog.tensors[0])[1].first, 2);
  ASSERT_EQ(catalog.chunks_of(catalog.tensors[1]).size(), 1U);
  EXPECT_THAT(test::to_numbers(catalog.chunks_of(catalog.tensors[1])[0].sizes), ElementsAre(4, 2));
  EXPECT_EQ(catalog.stored_of(catalog.tensors[1]).rank, 3);
  EXPECT_EQ(catalog.storage_of(catalog.tensors[1]).bytes, 1000);
}

TEST(CatalogBuilder, ARunIsTheBoxesOfItsElements) {
  Catalog catalog;
  CatalogBuilder builder(catalog);
  const std::uint32_t stored = add_bytes(builder, {100});
  builder.begin("a", {}, DType::kUint8, dims(catalog, {3, 4}));
  builder.add_run(stored, 2, 8, 50);  // Half a row, one row, half a row.
  const auto chunks = catalog.chunks_of(catalog.tensors[0]);
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_THAT(test::to_numbers(chunks[0].offsets), ElementsAre(0, 2));
  EXPECT_THAT(test::to_numbers(chunks[1].offsets), ElementsAre(1, 0));
  EXPECT_THAT(test::to_numbers(chunks[2].sizes), ElementsAre(1, 2));
  EXPECT_THAT((Numbers{chunks[0].first, chunks[1].first, chunks[2].first}), ElementsAre(50, 52, 56));
  EXPECT_THAT(test::to_numbers(chunks[0].strides), ElementsAre(4, 1));
}

TEST(CatalogBuilder, AnEmptyChunkIsAtTheEndOfTheDimensionThatHasNoElements) {
  Catalog catalog;
  CatalogBuilder builder(catalog);
  builder.begin("a", {}, DType::kUint8, dims(catalog, {6, 5}));
  builder.add_empty(add_bytes(builder, {0, 5}));
  EXPECT_THAT(test::to_numbers(catalog.chunks[0].offsets), ElementsAre(6, 0));
  EXPECT_THAT(test::to_numbers(catalog.chunks[0].sizes), ElementsAre(0, 5));
}

TEST(CatalogBuilder, AnAliasHasStoredTensorsOverTheSameStorage) {
  Catalog catalog;
  CatalogBuilder builder(catalog);
  const std::uint32_t first = builder.begin("a", {}, DType::kUint8, dims(catalog, {2}));
  builder.add_whole(add_bytes(builder, {2}));
  builder.begin("b", {}, DType::kUint8, dims(catalog, {2}));
  builder.add_alias_chunks(first);
  const Chunk &a = catalog.chunks[0], &b = catalog.chunks[1];
  EXPECT_NE(a.stored, b.stored);
  EXPECT_EQ(catalog.stored_of(a).storage, catalog.stored_of(b).storage);
}

TEST(CatalogBuilder, ResumeGivesLateChunksToAnEarlierTensor) {
  Catalog catalog;
  CatalogBuilder builder(catalog);
  const std::uint32_t late = builder.begin("late", {}, DType::kUint8, dims(catalog, {2}));
  builder.begin("other", {}, DType::kUint8, dims(catalog, {2}));
  builder.add_whole(add_bytes(builder, {2}));
  builder.resume(late);
  builder.add_whole(add_bytes(builder, {2}));
  EXPECT_EQ(catalog.tensors[0].first_chunk, 1U);
  EXPECT_EQ(catalog.tensors[0].chunk_count, 1U);
  EXPECT_EQ(catalog.tensors[1].first_chunk, 0U);
}

TEST(CatalogBuilder, ChargesEveryTensorAndEveryChunk) {
  Catalog catalog = source_catalog();
  CatalogBuilder builder(catalog);
  const std::uint32_t stored = add_bytes(builder, {4});
  builder.begin("a", {}, DType::kUint8, dims(catalog, {4}));
  builder.add_part(stored, Numbers{0}, Numbers{2}, Numbers{0});
  builder.add_part(stored, Numbers{2}, Numbers{2}, Numbers{2});
  builder.add_tensor("b", {}, StoredTensor(catalog.stored[stored]));
  EXPECT_EQ(catalog.arena->budget()->count(Charge::kEntries), 2);
  EXPECT_EQ(catalog.arena->budget()->count(Charge::kChunks), 3);
}

TEST(CatalogBuilder, AddsNoTensorThatLeavesItsStorage) {
  Catalog catalog;
  CatalogBuilder builder(catalog);
  StoredTensor stored;
  stored.shape = dims(catalog, {1001});
  stored.strides = dims(catalog, {1});
  stored.dtype = DType::kUint8;
  stored.storage = builder.add_storage({.offset = 0, .bytes = 1000});
  EXPECT_EQ(test::error_of([&] { builder.add_tensor("a", {}, stored); }).code(), ErrorCode::kCorruption);
  EXPECT_TRUE(catalog.tensors.empty());
  EXPECT_TRUE(catalog.stored.empty());
}

void add_object_and_tensor(CatalogBuilder& builder) {
  builder.begin("a", {}, DType::kUint8, dims(builder.catalog(), {2}));
  builder.add_whole(add_bytes(builder, {2}));
  builder.catalog().objects.push_back({"o", {}, nullptr, -1});
}

TEST(CatalogMark, RollsBackAllButStorages) {
  Catalog catalog;
  CatalogBuilder builder(catalog);
  add_object_and_tensor(builder);
  {
    const CatalogMark mark(catalog);
    add_object_and_tensor(builder);
  }
  EXPECT_EQ(catalog.tensors.size(), 1U);
  EXPECT_EQ(catalog.chunks.size(), 1U);
  EXPECT_EQ(catalog.stored.size(), 1U);
  EXPECT_EQ(catalog.objects.size(), 1U);
  EXPECT_EQ(catalog.storages.size(), 2U);
}

TEST(CatalogMark, RollsBackStoragesOnRequest) {
  Catalog catalog;
  CatalogBuilder builder(catalog);
  CatalogMark mark(catalog, CatalogMark::Storages::kRemoved);
  add_object_and_tensor(builder);
  mark.roll_back();
  EXPECT_TRUE(catalog.storages.empty());
  EXPECT_TRUE(catalog.tensors.empty());
}

TEST(CatalogMark, KeepsWhatItIsToldToKeep) {
  Catalog catalog;
  CatalogBuilder builder(catalog);
  {
    CatalogMark mark(catalog);
    add_object_and_tensor(builder);
    mark.keep();
  }
  EXPECT_EQ(catalog.tensors.size(), 1U);
}

}  // namespace
}  // namespace shard

#include "formats/hdf5/placed_dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "libshard/core/box.h"
#include "libshard/core/error.h"

namespace shard::hdf5 {
namespace {

using Dimensions = std::vector<std::int64_t>;

Entry chunked(Dimensions shape, Dimensions chunk, DType dtype = DType::kInt32) {
  Entry entry;
  entry.kind = EntryKind::kDataset;
  entry.type = type_of(dtype);
  entry.space = {SpaceKind::kSimple, std::move(shape)};
  entry.storage = StorageKind::kChunked;
  entry.chunk_shape = std::move(chunk);
  return entry;
}

/// Chunk `number` is at 1000 * number.
void write_chunks(Entry& entry, std::span<const std::int64_t> numbers, std::uint32_t bytes) {
  for (const std::int64_t number : numbers) entry.chunks.push_back({number, 1000 * number, bytes, 0});
}

struct Placed {
  Catalog catalog = source_catalog();
  CatalogBuilder builder{catalog};
  StoredViews views;
  PlacedDataset dataset;
};
std::unique_ptr<Placed> place(const Entry& entry) {
  auto placed = std::make_unique<Placed>();
  placed->catalog.files.push_back({"f.h5", 1 << 20, -1});
  placed->dataset = place_dataset(placed->catalog, placed->views, 0, -1, entry);
  placed->builder.begin("x", {}, placed->dataset.dtype, placed->catalog.arena->dims(placed->dataset.shape));
  return placed;
}

/// The storage and byte of each element of a tensor.
using Places = std::map<Dimensions, std::pair<std::uint32_t, std::int64_t>>;
void visit(const Catalog& catalog, const Chunk& chunk, Places& places) {
  Dimensions at(static_cast<std::size_t>(chunk.sizes.size()));
  const std::int64_t count =
      std::accumulate(chunk.sizes.begin(), chunk.sizes.end(), std::int64_t{1}, std::multiplies<>());
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i, element = chunk.first;
    Dimensions index(at.size());
    for (int d = chunk.sizes.size() - 1; d >= 0; --d) {
      const std::int64_t step = rest % chunk.sizes[d];
      rest /= chunk.sizes[d];
      index[static_cast<std::size_t>(d)] = chunk.offsets[d] + step;
      element += step * chunk.strides[d];
    }
    const StoredTensor& stored = catalog.stored[chunk.stored];
    EXPECT_TRUE(places.emplace(index, std::pair(stored.storage, element)).second) << "an element twice";
  }
}

TEST(PlacedDataset, EveryElementOfAnyBoxLiesWhereTheGridSays) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const std::size_t rank = random() % 4;
    Dimensions shape, box, from, sizes, to;
    std::vector<int> dims;
    std::int64_t grid = 1;
    for (std::size_t d = 0; d < rank; ++d) {
      shape.push_back(1 + static_cast<std::int64_t>(random() % 7));
      box.push_back(1 + static_cast<std::int64_t>(random() % 8));
      grid *= (shape[d] - 1) / box[d] + 1;
      from.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape[d])));
      sizes.push_back(1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape[d] - from[d])));
      to.push_back(static_cast<std::int64_t>(random() % 5));
      dims.push_back(static_cast<int>(d));
    }
    Entry entry = chunked(shape, box);
    const std::int64_t elements = std::accumulate(box.begin(), box.end(), std::int64_t{1}, std::multiplies<>());
    Dimensions numbers(static_cast<std::size_t>(grid));
    std::iota(numbers.begin(), numbers.end(), 0);
    write_chunks(entry, numbers, static_cast<std::uint32_t>(4 * elements));
    const auto placed = place(entry);
    append_chunks(placed->builder, placed->views, placed->dataset, from, sizes, to, dims);
    Places places;
    for (const Chunk& chunk : placed->catalog.chunks) visit(placed->catalog, chunk, places);
    EXPECT_EQ(places.size(), static_cast<std::size_t>(
                                 std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>())));
    for (const auto& [index, found] : places) {
      std::int64_t number = 0, element = 0;
      for (std::size_t d = 0; d < rank; ++d) {
        const std::int64_t at = index[d] - to[d] + from[d];
        number = number * ((shape[d] - 1) / box[d] + 1) + at / box[d];
        element = element * box[d] + at % box[d];
      }
      const Storage& storage = placed->catalog.storages[found.first];
      EXPECT_EQ(storage.offset, 1000 * number);
      EXPECT_EQ(found.second, element);
    }
  }
}

TEST(PlacedDataset, ChunksThatWereNeverWrittenShareOneStorage) {
  Entry entry = chunked({10}, {3});
  const std::int64_t written[] = {2};
  write_chunks(entry, written, 12);
  const auto placed = place(entry);
  ASSERT_EQ(placed->dataset.stored.size(), 4U);
  EXPECT_EQ(placed->dataset.stored[0], placed->dataset.stored[1]);
  EXPECT_EQ(placed->dataset.stored[0], placed->dataset.stored[3]);
  EXPECT_NE(placed->dataset.stored[0], placed->dataset.stored[2]);
  EXPECT_FALSE(placed->catalog.storages[placed->catalog.stored[placed->dataset.stored[0]].storage].plain);
}

TEST(PlacedDataset, RunsOfChunksThatWereNeverWrittenAreLargeChunksOfTheTensor) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    Dimensions shape, box, zeros(1 + random() % 3, 0);
    std::int64_t grid = 1, elements = 1;
    for (std::size_t d = 0; d < zeros.size(); ++d) {
      shape.push_back(1 + static_cast<std::int64_t>(random() % 9));
      box.push_back(1 + static_cast<std::int64_t>(random() % 4));
      grid *= boxes_along(shape[d], box[d]);
      elements *= shape[d];
    }
    Entry entry = chunked(shape, box);
    Dimensions written;
    for (std::int64_t i = 0; i < grid; ++i) {
      if (random() % 4 == 0) written.push_back(i);
    }
    write_chunks(
        entry, written,
        static_cast<std::uint32_t>(4 * std::accumulate(box.begin(), box.end(), std::int64_t{1}, std::multiplies<>())));
    const auto placed = place(entry);
    append_whole(placed->builder, placed->views, placed->dataset);
    Places places;
    for (const Chunk& chunk : placed->catalog.chunks) visit(placed->catalog, chunk, places);
    EXPECT_EQ(std::ssize(places), elements);
    for (const auto& [index, found] : places) {
      std::int64_t number = 0;
      for (std::size_t d = 0; d < index.size(); ++d)
        number = number * boxes_along(shape[d], box[d]) + index[d] / box[d];
      const Storage& storage = placed->catalog.storages[found.first];
      EXPECT_EQ(storage.plain, std::ranges::binary_search(written, number));
      EXPECT_LT(4 * found.second, storage.bytes);
    }
  }
}

TEST(PlacedDataset, NarrowChunksThatWereNeverWrittenAreOne) {
  const auto chunks = [](Dimensions shape, Dimensions box, Dimensions written) {
    Entry entry = chunked(std::move(shape), std::move(box));
    write_chunks(entry, written, 4 * 100);
    const auto placed = place(entry);
    append_whole(placed->builder, placed->views, placed->dataset);
    return placed->catalog.chunks.size();
  };
  EXPECT_EQ(chunks({100, 1000}, {100, 1}, {}), 1U);
  EXPECT_EQ(chunks({100, 10, 10}, {100, 1, 1}, {}), 1U);
  EXPECT_EQ(chunks({100, 1000}, {100, 1}, {500}), 3U);
  EXPECT_EQ(chunks({100, 10, 10}, {100, 1, 1}, {55}), 5U) << "before and behind it, in its row and in whole rows";
}

TEST(PlacedDataset, WhatContradictsItselfIsRefused) {
  const auto refused = [](Entry entry) {
    try {
      place(entry);
      return false;
    } catch (const Error& error) {
      return error.code() == ErrorCode::kCorruption;
    }
  };
  const std::int64_t first[] = {0}, outside[] = {9}, twice[] = {1, 1}, back[] = {1, 0};
  Entry entry = chunked({10}, {3});
  write_chunks(entry, first, 11);
  EXPECT_TRUE(refused(entry)) << "a chunk of another size";
  for (const auto numbers : {std::span<const std::int64_t>(outside), std::span<const std::int64_t>(twice),
                             std::span<const std::int64_t>(back)}) {
    Entry wrong = chunked({10}, {3});
    write_chunks(wrong, numbers, 12);
    EXPECT_TRUE(refused(wrong)) << numbers.front();
  }
  EXPECT_TRUE(refused(chunked({10}, {0})));
  EXPECT_TRUE(refused(chunked({10}, {3, 3})));
  EXPECT_TRUE(refused(chunked({std::int64_t{1} << 40}, {1}))) << "more chunks than the file pays for";
  EXPECT_TRUE(refused(chunked({std::int64_t{1} << 40, std::int64_t{1} << 40}, {1, 1})));
  Entry contiguous = chunked({10}, {});
  contiguous.storage = StorageKind::kContiguous;
  contiguous.offset = 100;
  contiguous.stored_bytes = 39;
  EXPECT_TRUE(refused(contiguous));
  Entry compact = chunked({10}, {});
  compact.storage = StorageKind::kCompact;
  EXPECT_TRUE(refused(compact));
}

TEST(PlacedDataset, NoElementsNeedNoPlace) {
  const auto placed = place(chunked({3, 0}, {1, 1}));
  EXPECT_TRUE(placed->dataset.stored.empty());
  append_whole(placed->builder, placed->views, placed->dataset);
  EXPECT_TRUE(placed->catalog.chunks.empty());
}

TEST(PlacedDataset, OtherDatatypesAreRefusedByName) {
  Entry entry = chunked({3}, {1});
  entry.type.kind = TypeClass::kReference;
  try {
    place(entry);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("reference"), std::string::npos);
  }
}

}  // namespace
}  // namespace shard::hdf5

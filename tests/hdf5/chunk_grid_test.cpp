#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "formats/hdf5/chunk_view.h"
#include "formats/parts/decoded_view/view_cache.h"
#include "libshard/core/box.h"
#include "libshard/exec/execute.h"
#include "libshard/exec/tensor_reader.h"
#include "libshard/plan/plan.h"
#include "tests/hdf5/applied_filters.h"
#include "tests/support/memory_checkpoint.h"

namespace shard::hdf5 {
namespace {

using namespace shard::hdf5::testing;
using shard::testing::add_storage;
using shard::testing::add_tensor;
using shard::testing::CountingFiles;
using shard::testing::MadeChunk;
using Sizes = std::vector<std::int64_t>;

/// Counts the reads at each offset: a chunk is read from the file each time that it is decoded.
class CountedFile final : public RandomReader {
 public:
  explicit CountedFile(std::string bytes) : bytes_(std::move(bytes)) { name_ = "a.h5"; }
  std::int64_t size() const override { return static_cast<std::int64_t>(bytes_.size()); }
  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    {
      std::unique_lock lock(mutex_);
      ++reads_[offset];
      most_inside_ = std::max(most_inside_, ++inside_);
      changed_.notify_all();
      if (waits_for_another) changed_.wait_for(lock, std::chrono::seconds(2), [&] { return most_inside_ > 1; });
      --inside_;
    }
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
  }
  std::map<std::int64_t, int> take_reads() const { return std::exchange(reads_, {}); }
  int most_inside() const { return most_inside_; }

  bool waits_for_another = false;  ///< A read lasts until there were two at once; not for ever.

 private:
  std::string bytes_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int inside_ = 0, most_inside_ = 0;
  mutable std::map<std::int64_t, int> reads_;
};

/// A dataset of uint32 in a grid of deflated chunks; element number i has the value i.
class Dataset final : public Reader {
 public:
  Dataset(Sizes dataset_shape, Sizes chunk_shape)
      : shape(std::move(dataset_shape)), box_(std::move(chunk_shape)), strides_(shape.size()), steps_(shape.size()) {
    row_major_strides(shape, strides_);
    row_major_strides(box_, steps_);
    catalog_.files.push_back({.path = "a.h5"});
    std::vector<MadeChunk> chunks;
    std::string bytes;
    for (Sizes corner(shape.size(), 0); !corner.empty(); next(corner)) chunks.push_back(add_chunk(corner, bytes));
    add_tensor(catalog_, "w", DType::kUint32, shape, chunks);
    catalog_.files[0].bytes = static_cast<std::int64_t>(bytes.size());
    file_ = std::make_shared<CountedFile>(std::move(bytes));
  }

  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t) const override { return file_; }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    return cache_->get(storage, [&] {
      return decoded_chunk({.file = file_,
                            .place = places_[storage],
                            .bytes = catalog_.storages[storage].bytes,
                            .filters = filters_,
                            .shown = fmt::format("chunk {}", storage)});
    });
  }
  /// Since the last call; nothing is kept for later.
  void expect_decoded_once(bool all = true) {
    const std::map<std::int64_t, int> reads = file_->take_reads();
    for (const auto& [offset, count] : reads) EXPECT_EQ(count, 1) << offset;
    if (all) {
      EXPECT_EQ(reads.size(), places_.size());
    }
    cache_ = std::make_unique<decoded_view::ViewCache>();
  }

  CountedFile& counted_file() { return *file_; }

  const Sizes shape;

 private:
  void next(Sizes& corner) const {
    for (std::size_t d = corner.size(); d-- > 0;) {
      corner[d] += box_[d];
      if (corner[d] < shape[d]) return;
      corner[d] = 0;
    }
    corner.clear();
  }

  MadeChunk add_chunk(const Sizes& corner, std::string& bytes) {
    const Box whole(corner, box_);
    std::vector<std::uint32_t> elements(static_cast<std::size_t>(whole.numel()), 0xFFFFFFFF);
    MadeChunk chunk{.offsets = corner, .sizes = box_, .strides = steps_};
    for (std::size_t d = 0; d < corner.size(); ++d) chunk.sizes[d] = std::min(box_[d], shape[d] - corner[d]);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      std::int64_t rest = static_cast<std::int64_t>(i), number = 0;
      bool is_inside = true;
      for (std::size_t d = 0; d < corner.size(); ++d) {
        const std::int64_t index = corner[d] + rest / steps_[d];
        rest %= steps_[d];
        number += index * strides_[d];
        is_inside = is_inside && index < shape[d];
      }
      if (is_inside) elements[i] = static_cast<std::uint32_t>(number);
    }
    const std::string text(reinterpret_cast<const char*>(elements.data()), elements.size() * 4);
    const std::string stored = filtered(text, filters_);
    places_.push_back({.number = static_cast<std::int64_t>(places_.size()),
                       .offset = static_cast<std::int64_t>(bytes.size()),
                       .bytes = static_cast<std::uint32_t>(stored.size())});
    bytes += stored;
    chunk.storage = static_cast<std::uint32_t>(catalog_.storages.size());
    catalog_.storages.push_back(
        {.offset = 0, .bytes = static_cast<std::int64_t>(text.size()), .plain = false, .is_stream = true});
    return chunk;
  }

  Catalog catalog_;
  const Sizes box_;
  Sizes strides_, steps_;  ///< The shape of the dataset and of a chunk.
  std::vector<ChunkPlace> places_;
  std::vector<Filter> filters_{shuffled(4), kDeflated};
  std::shared_ptr<CountedFile> file_;
  mutable std::unique_ptr<decoded_view::ViewCache> cache_ = std::make_unique<decoded_view::ViewCache>();
};

/// Datasets of 3 to 12 MiB: small chunks in two and three dimensions, rows, columns, large ones, a line, planes.
std::vector<std::pair<Sizes, Sizes>> grids() {
  return {{{1000, 1100}, {64, 64}},      {{600, 2000}, {100, 2000}},    {{2000, 400}, {2000, 3}},
          {{1500, 2000}, {700, 700}},    {{20, 300, 200}, {7, 64, 64}}, {{3000000}, {10000}},
          {{100, 200, 50}, {1, 200, 50}}};
}

/// The columns from `first` on, in runs of `each`.
Catalog target_of(const Dataset& dataset, std::int64_t first, std::int64_t each) {
  Catalog target;
  std::vector<MadeChunk> chunks;
  const std::size_t last = dataset.shape.size() - 1;
  for (std::int64_t begin = first; begin < dataset.shape[last]; begin += each) {
    MadeChunk chunk{.offsets = Sizes(last + 1, 0), .sizes = dataset.shape, .strides = Sizes(last + 1)};
    chunk.offsets[last] = begin;
    chunk.sizes[last] = std::min(each, dataset.shape[last] - begin);
    row_major_strides(chunk.sizes, chunk.strides);
    chunk.storage = add_storage(target, 0, 4 * Box(chunk.offsets, chunk.sizes).numel());
    chunks.push_back(chunk);
  }
  target.tensors[add_tensor(target, "w", DType::kUint32, dataset.shape, chunks)].source = 0;
  return target;
}

void expect_numbers(std::span<const std::byte> bytes, std::uint32_t first) {
  for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    std::uint32_t number = 0;
    std::memcpy(&number, bytes.data() + i, 4);
    ASSERT_EQ(number, first + i / 4);
  }
}

std::vector<std::byte> copied(const Dataset& dataset, const Catalog& target, int threads) {
  const Plan plan = plan_copies(dataset.catalog(), target, {.max_memory_bytes = 64 << 20, .threads = threads});
  CountingFiles files(target.files);
  Progress progress;
  execute(plan, dataset.catalog(), dataset, target, files.writers, {.threads = threads}, progress);
  return std::move(files.owned[0]->bytes);
}

TEST(ChunkGrid, ACopyDecodesEachChunkOnce) {
  for (const auto& [shape, box] : grids()) {
    Dataset dataset(shape, box);
    for (const int threads : {1, 4}) {
      expect_numbers(copied(dataset, target_of(dataset, 0, shape.back()), threads), 0);
      dataset.expect_decoded_once();
    }
    copied(dataset, target_of(dataset, 0, shape.back() / 3 + 1), 2);
    dataset.expect_decoded_once();
  }
}

// Its tiles end at offsets where no chunk ends.
TEST(ChunkGrid, ACopyOfAPartDecodesEachChunkOnce) {
  for (const auto& [shape, box] : grids()) {
    Dataset dataset(shape, box);
    copied(dataset, target_of(dataset, shape.back() / 7, shape.back()), 2);
    dataset.expect_decoded_once(false);
  }
}

void read_in_rows(const Dataset& dataset, int threads) {
  BufferPool pool(8 << 20);
  Progress progress;
  TensorReader reader(dataset.catalog(), dataset, 0, progress, throwing_findings(), &pool, threads);
  const std::int64_t all = Box(Sizes(dataset.shape.size(), 0), dataset.shape).numel(),
                     step = reader.block_elements(1 << 20);
  std::vector<std::byte> block;
  for (std::int64_t begin = 0; begin < all; begin += step) {
    block.resize(static_cast<std::size_t>(std::min(step, all - begin)) * 4);
    reader.read(begin, std::min(begin + step, all), block);
    expect_numbers(block, static_cast<std::uint32_t>(begin));
  }
}

TEST(ChunkGrid, ReadingInRowsDecodesEachChunkOnce) {
  for (const auto& [shape, box] : grids()) {
    Dataset dataset(shape, box);
    for (const int threads : {1, 4}) {
      read_in_rows(dataset, threads);
      dataset.expect_decoded_once();
    }
  }
}

TEST(ChunkGrid, WorkersDecodeAtOnce) {
  const std::vector<std::pair<Sizes, Sizes>> of_several{{{1500, 2000}, {700, 700}}, {{1500, 2000}, {300, 2000}}};
  for (const auto& [shape, box] : of_several) {
    for (const bool is_copied : {false, true}) {
      Dataset dataset(shape, box);
      dataset.counted_file().waits_for_another = true;
      is_copied ? void(copied(dataset, target_of(dataset, 0, shape.back()), 2)) : read_in_rows(dataset, 2);
      EXPECT_EQ(dataset.counted_file().most_inside(), 2) << is_copied;
    }
  }
}

}  // namespace
}  // namespace shard::hdf5

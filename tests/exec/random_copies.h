/// \file
/// Copies between random layouts, and their results by plain loops: for every way to execute a plan.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/digest.h"
#include "libshard/exec/cast.h"
#include "libshard/exec/execute.h"
#include "libshard/exec/runs.h"
#include "tests/support/memory_checkpoint.h"

namespace shard::testing {

using Random = std::mt19937_64;
using Sizes = std::vector<std::int64_t>;

inline std::uint64_t seed() {
  const char* given = std::getenv("SHARD_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

inline std::int64_t below(Random& random, std::int64_t n) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
}

inline std::vector<std::byte> random_bytes(Random& random, std::int64_t size) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  for (std::size_t done = 0; done < bytes.size(); done += sizeof(std::uint64_t)) {
    const std::uint64_t drawn = random();
    std::memcpy(bytes.data() + done, &drawn, std::min(sizeof drawn, bytes.size() - done));
  }
  return bytes;
}

/// Faster than == of vectors, which without optimization compares each byte by several calls.
inline bool same_bytes(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

/// Cuts a box in two again and again: pieces that mostly form no grid.
inline void cut(Random& random, const Box& box, int depth, std::vector<Box>& out) {
  std::vector<std::size_t> longer;
  for (std::size_t d = 0; d < static_cast<std::size_t>(box.dims); ++d) {
    if (box.size[d] > 1) longer.push_back(d);
  }
  if (depth == 0 || longer.empty() || box.empty()) return out.push_back(box);
  const std::size_t d = longer[random() % longer.size()];
  Box low = box, high = box;
  low.size[d] = 1 + below(random, box.size[d] - 1);
  high.offset[d] += low.size[d];
  high.size[d] -= low.size[d];
  cut(random, low, depth - 1, out);
  cut(random, high, depth - 1, out);
}

/// Cuts a dimension into equal parts, as layouts do.
inline std::vector<Box> cut_evenly(Random& random, const Box& box) {
  const auto d = static_cast<std::size_t>(below(random, box.dims));
  const std::int64_t parts = 1 + below(random, 5), each = (box.size[d] + parts - 1) / parts;
  std::vector<Box> out;
  for (std::int64_t begin = 0; begin < box.size[d]; begin += each) {
    out.push_back(box);
    out.back().offset[d] = begin;
    out.back().size[d] = std::min(each, box.size[d] - begin);
  }
  return out;
}

inline std::vector<Box> random_cuts(Random& random, const Sizes& shape) {
  const Box whole(Sizes(shape.size(), 0), shape);
  std::vector<Box> boxes;
  if (whole.dims == 0 || whole.empty() || random() % 4 == 0) return {whole};
  if (random() % 2 == 0) return cut_evenly(random, whole);
  cut(random, whole, static_cast<int>(random() % 5), boxes);
  return boxes;
}

/// Strides for a box: packed in some order of the dimensions, or with gaps. Sets how many elements it spans.
inline Sizes random_strides(Random& random, const Sizes& sizes, std::int64_t& span) {
  Sizes order(sizes.size()), strides(sizes.size());
  for (std::size_t d = 0; d < order.size(); ++d) order[d] = static_cast<std::int64_t>(d);
  if (random() % 3 == 0) std::shuffle(order.begin(), order.end(), random);
  const bool has_gaps = random() % 4 == 0;
  std::int64_t step = has_gaps && random() % 2 == 0 ? 2 : 1;
  span = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto d = static_cast<std::size_t>(order[i]);
    strides[d] = step;
    span += (sizes[d] - 1) * step;
    step *= sizes[d];
    if (has_gaps) step += below(random, 3);
  }
  return strides;
}

inline std::vector<MadeChunk> random_chunks(Random& random, Catalog& catalog, const Sizes& shape,
                                            std::int64_t element_bytes, bool is_target) {
  std::vector<MadeChunk> chunks;
  std::int32_t rank = 0;
  for (const Box& box : random_cuts(random, shape)) {
    const int copies = random() % 5 == 0 ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      MadeChunk chunk;
      chunk.offsets.assign(box.offset.begin(), box.offset.begin() + box.dims);
      chunk.sizes.assign(box.size.begin(), box.size.begin() + box.dims);
      std::int64_t span = 0;
      chunk.strides = random_strides(random, chunk.sizes, span);
      if (is_target && copy > 0) chunk.strides = chunks.back().strides;
      chunk.first = random() % 4 == 0 ? below(random, 5) : 0;
      chunk.rank = rank++;
      if (is_target && copy > 0) chunk.first = chunks.back().first;
      if (box.empty())
        span = 0;
      else if (is_target && copy > 0)
        span = 1 << 12;  // Enough for the same strides.
      for (std::size_t d = 0; is_target && copy > 0 && d < chunk.sizes.size(); ++d)
        span += chunk.sizes[d] * chunk.strides[d];
      chunk.storage = add_storage(catalog, static_cast<std::uint32_t>(below(random, 3)),
                                  (chunk.first + span) * element_bytes, random() % 3 == 0 ? below(random, 9) : 0);
      chunks.push_back(chunk);
    }
  }
  return chunks;
}

/// Calls `each(logical, place)` with the row-major number of every element of a chunk and its byte in the file.
inline void for_each_element(const Catalog& catalog, const Tensor& tensor, const Chunk& chunk,
                             std::int64_t element_bytes, const std::function<void(std::int64_t, std::int64_t)>& each) {
  const Storage& storage = catalog.storages[catalog.stored[chunk.stored].storage];
  const int dims = chunk.sizes.size();
  Sizes index(static_cast<std::size_t>(dims)), scales(static_cast<std::size_t>(dims), 1);
  std::int64_t logical = 0, place = chunk.first, scale = 1;
  for (int d = dims; d-- > 0; scale *= tensor.shape[d]) {
    scales[static_cast<std::size_t>(d)] = scale;
    logical += chunk.offsets[d] * scale;
  }
  for (std::int64_t left = checked_numel(chunk.sizes.span()); left > 0; --left) {
    each(logical, storage.offset + place * element_bytes);
    for (int d = dims; d-- > 0;) {  // The next index: the last dimension first.
      std::int64_t& i = index[static_cast<std::size_t>(d)];
      const std::int64_t step = i + 1 < chunk.sizes[d] ? 1 : -i;
      i += step;
      logical += step * scales[static_cast<std::size_t>(d)];
      place += step * chunk.strides[d];
      if (step == 1) break;
    }
  }
}

/// A source and a target with random cuts, and the target's files made the obvious way.
struct RandomCopy {
  Catalog source, target;
  std::vector<std::vector<std::byte>> content;  // The elements of each tensor, row-major.
  std::vector<std::vector<std::byte>> source_files, expected;
  std::vector<std::vector<unsigned char>> writes;  // Expected times of each byte.

  void add(Random& random, DType from, DType to, const Sizes& shape) {
    const std::string name = fmt::format("t{}", source.tensors.size());
    const auto chunks = random_chunks(random, source, shape, element_bytes(from), false);
    add_tensor(source, name, from, shape, chunks);
    add_tensor(target, name, to, shape, random_chunks(random, target, shape, element_bytes(to), true));
  }

  void fill(Random& random) {
    for (const File& file : source.files) source_files.push_back(random_bytes(random, file.bytes));
    for (const File& file : target.files) {
      expected.emplace_back(static_cast<std::size_t>(file.bytes));
      writes.emplace_back(static_cast<std::size_t>(file.bytes));
    }
    for (std::size_t i = 0; i < source.tensors.size(); ++i) fill_tensor(random, i);
  }

  void fill_tensor(Random& random, std::size_t i) {
    const Tensor& from = source.tensors[i];
    const Tensor& to = target.tensors[i];
    const std::int64_t from_bytes = element_bytes(from.dtype), to_bytes = element_bytes(to.dtype);
    const std::int64_t count = checked_numel(from.shape.span());
    const std::vector<std::byte> logical = random_bytes(random, count * from_bytes);
    for (const Chunk& chunk : source.chunks_of(from)) {
      std::vector<std::byte>& file = source_files[source.storages[source.stored[chunk.stored].storage].file];
      for_each_element(source, from, chunk, from_bytes, [&](std::int64_t element, std::int64_t place) {
        std::memcpy(file.data() + place, logical.data() + element * from_bytes, static_cast<std::size_t>(from_bytes));
      });
    }
    std::vector<std::byte> wanted(static_cast<std::size_t>(count * to_bytes));
    if (from.dtype == to.dtype)
      wanted = logical;
    else
      cast(from.dtype, logical, to.dtype, wanted);
    for (const Chunk& chunk : target.chunks_of(to)) {
      const std::uint32_t file = target.storages[target.stored[chunk.stored].storage].file;
      for_each_element(target, to, chunk, to_bytes, [&](std::int64_t element, std::int64_t place) {
        std::memcpy(expected[file].data() + place, wanted.data() + element * to_bytes,
                    static_cast<std::size_t>(to_bytes));
        for (std::int64_t b = 0; b < to_bytes; ++b) ++writes[file][static_cast<std::size_t>(place + b)];
      });
    }
    content.push_back(logical);
  }
};

/// Makes tiles of random sides, so that small tensors have many.
inline void retile(Random& random, Plan& plan) {
  plan.tile_count = 0;
  for (Unit& unit : plan.units) {
    Sizes sides;
    std::int64_t tiles = 1;
    for (int d = 0; d < unit.shape.size(); ++d) {
      sides.push_back(std::max<std::int64_t>(1, 1 + below(random, unit.shape[d])));
      if (unit.shape[d] / sides.back() > 64) sides.back() = unit.shape[d] / 64;
      tiles *= (unit.shape[d] + sides.back() - 1) / sides.back();
    }
    unit.tile = plan.arena->dims(sides);
    unit.first_tile = plan.tile_count;
    unit.tile_count = tiles;
    plan.tile_count += tiles;
  }
}

/// The bytes spanned by the source's pieces, gaps included: each byte is read once.
inline std::int64_t span_bytes(const Plan& plan) {
  std::int64_t bytes = 0;
  for (const Unit& unit : plan.units) {
    for (const Piece& piece : plan.from(unit)) {
      bytes += span_of(piece.sizes.span(), piece.strides.span()) * element_bytes(unit.from);
    }
  }
  return bytes;
}

/// The sides whose files offer their bytes in memory (RandomReader::in_memory, FileWriter::in_memory).
struct Lent {
  bool source = false, target = false;
};

/// \returns the number of bytes that were read, or written, in place.
inline std::int64_t check_run(const RandomCopy& the, const Plan& plan, const ExecuteOptions& options, Lent lent = {}) {
  const MemoryReader reader(the.source, the.source_files, lent.source);
  CountingFiles files(the.target.files);
  for (const auto& each : files.owned) each->is_lent = lent.target;
  Progress progress;
  const auto sums = execute(plan, the.source, reader, the.target, files.writers, options, progress);
  for (std::size_t i = 0; i < the.expected.size(); ++i) {
    EXPECT_TRUE(same_bytes(files.owned[i]->bytes, the.expected[i])) << "file " << i;
    EXPECT_TRUE(files.owned[i]->writes == the.writes[i]) << "times written, file " << i;
  }
  EXPECT_EQ(progress.bytes_written, plan.bytes_to_write);
  EXPECT_GE(progress.bytes_read, plan.bytes_to_read);
  EXPECT_LE(static_cast<double>(progress.bytes_read), 1.01 * static_cast<double>(span_bytes(plan)));
  for (std::uint32_t s = 0; options.checksums && s < the.target.storages.size(); ++s) {
    const Storage& storage = the.target.storages[s];
    const auto bytes = std::span(the.expected[storage.file])
                           .subspan(static_cast<std::size_t>(storage.offset), static_cast<std::size_t>(storage.bytes));
    EXPECT_EQ(sums->crc32_of(s), crc32(bytes)) << "storage " << s;
  }
  std::int64_t lent_bytes = reader.lent_bytes();
  for (const auto& each : files.owned) lent_bytes += each->lent_bytes;
  return lent_bytes;
}

inline Sizes random_shape(Random& random, std::int64_t most) {
  Sizes shape(random() % 5);
  for (std::int64_t& n : shape) n = random() % 20 == 0 ? 0 : 1 + below(random, most);
  return shape;
}

}  // namespace shard::testing

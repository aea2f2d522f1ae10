#include "libshard/exec/transpose.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace shard {

namespace {

constexpr std::int64_t kBand = 512;  // The number of rows whose pages are in use at once, small enough for the TLB.
// A target with a larger span leaves the cache before it is used. Its lines are written past the cache, so that the
// processor does not read each of them first.
constexpr std::int64_t kStreamedSpan = 4 << 20;

#ifdef __SSE2__
constexpr bool kHasStreams = true;
void stream_line(const std::byte* from, std::byte* to) {
  for (std::size_t i = 0; i < kCacheLine; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}
/// Makes streamed lines visible to all threads that see this thread's next write.
void end_streams() { _mm_sfence(); }
#else
constexpr bool kHasStreams = false;
void stream_line(const std::byte* from, std::byte* to) { std::memcpy(to, from, kCacheLine); }
void end_streams() {}
#endif

template <std::size_t kUnit>
struct VectorOf;
template <>
struct VectorOf<1> {
  using Type [[gnu::vector_size(16)]] = std::uint8_t;
};
template <>
struct VectorOf<2> {
  using Type [[gnu::vector_size(16)]] = std::uint16_t;
};
template <>
struct VectorOf<4> {
  using Type [[gnu::vector_size(16)]] = std::uint32_t;
};
template <>
struct VectorOf<8> {
  using Type [[gnu::vector_size(16)]] = std::uint64_t;
};

/// Takes elements of `a` and `b` alternately, from their lower or upper halves.
template <std::size_t kUnit, bool kUpper, class Vector, std::size_t... kIndex>
Vector interleave(Vector a, Vector b, std::index_sequence<kIndex...>) {
  constexpr std::size_t kUnits = 16 / kUnit;
  constexpr std::size_t kFirst = kUpper ? kUnits / 2 : 0;
  return __builtin_shufflevector(a, b, static_cast<int>(kFirst + kIndex / 2 + kIndex % 2 * kUnits)...);
}

/// Transposes kUnits rows of kUnits elements with log2(kUnits) perfect shuffles of rows i and i + kUnits / 2.
template <std::size_t kUnit>
void transpose_square(const std::byte* from, std::int64_t from_stride, std::byte* to, std::size_t to_stride) {
  if constexpr (kUnit == 16) {
    std::memcpy(to, from, 16);
  } else {
    using Vector = typename VectorOf<kUnit>::Type;
    constexpr std::size_t kUnits = 16 / kUnit;
    constexpr auto kIndices = std::make_index_sequence<kUnits>();
    Vector rows[kUnits];
    for (std::size_t i = 0; i < kUnits; ++i) {
      std::memcpy(&rows[i], from + static_cast<std::int64_t>(i) * from_stride, 16);
    }
    // If elements are numbered row by row, each step rotates the bits of their numbers by one. After log2(kUnits)
    // steps, the bits of row and column have changed places.
    for (std::size_t step = 1; step < kUnits; step *= 2) {
      Vector next[kUnits];
      for (std::size_t i = 0; i < kUnits / 2; ++i) {
        next[2 * i] = interleave<kUnit, false, Vector>(rows[i], rows[i + kUnits / 2], kIndices);
        next[2 * i + 1] = interleave<kUnit, true, Vector>(rows[i], rows[i + kUnits / 2], kIndices);
      }
      std::memcpy(rows, next, sizeof(rows));
    }
    for (std::size_t i = 0; i < kUnits; ++i) std::memcpy(to + i * to_stride, &rows[i], 16);
  }
}

/// Transposes one tile whose rows and columns are one cache line long. Whole lines are read and written, each once. If
/// strides are powers of two, all lines of a tile share a few sets of the cache, and would evict each other before
/// their second use.
template <std::size_t kUnit, bool kStreamed>
void transpose_tile(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride) {
  constexpr std::size_t kSide = kCacheLine / kUnit;
  constexpr std::size_t kSquare = 16 / kUnit;
  alignas(kCacheLine) std::array<std::byte, kSide * kCacheLine> tile;
  // The squares are transposed into a local tile, whose lines are then written one by one.
  for (std::size_t i = 0; i < kSide; i += kSquare) {
    const std::byte* rows = from + static_cast<std::int64_t>(i) * from_stride;
    for (std::size_t j = 0; j < kSide; j += kSquare) {
      transpose_square<kUnit>(rows + j * kUnit, from_stride, tile.data() + j * kCacheLine + i * kUnit, kCacheLine);
    }
  }
  for (std::size_t j = 0; j < kSide; ++j) {
    std::byte* const line = to + static_cast<std::int64_t>(j) * to_stride;
    if constexpr (kStreamed) {
      stream_line(tile.data() + j * kCacheLine, line);
    } else {
      std::memcpy(line, tile.data() + j * kCacheLine, kCacheLine);
    }
  }
}

/// Transposes the parts outside of whole tiles: one element at a time, in blocks of columns whose target lines stay in
/// the cache.
template <std::size_t kUnit>
void transpose_edge(std::int64_t rows, std::int64_t columns, const std::byte* from, std::int64_t from_stride,
                    std::byte* to, std::int64_t to_stride) {
  constexpr auto kStep = static_cast<std::int64_t>(kUnit), kLine = static_cast<std::int64_t>(kCacheLine);
  for (std::int64_t begin = 0; begin < columns; begin += kLine) {
    const std::int64_t end = std::min(begin + kLine, columns);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = begin; j < end; ++j) {
        std::memcpy(to + j * to_stride + i * kStep, from + i * from_stride + j * kStep, kUnit);
      }
    }
  }
}

/// Transposes whole tiles, one column of tiles after another in each band of rows.
template <std::size_t kUnit, bool kStreamed>
void transpose_tiles(std::int64_t rows, std::int64_t columns, const std::byte* from, std::int64_t from_stride,
                     std::byte* to, std::int64_t to_stride) {
  constexpr auto kSide = static_cast<std::int64_t>(kCacheLine / kUnit), kStep = static_cast<std::int64_t>(kUnit);
  for (std::int64_t band = 0; band < rows; band += kBand) {
    const std::int64_t band_end = std::min(band + kBand, rows);
    for (std::int64_t j = 0; j < columns; j += kSide) {
      for (std::int64_t i = band; i < band_end; i += kSide) {
        transpose_tile<kUnit, kStreamed>(from + i * from_stride + j * kStep, from_stride,
                                         to + j * to_stride + i * kStep, to_stride);
      }
    }
  }
  if constexpr (kStreamed) end_streams();
}

bool is_streamed(std::int64_t columns, const std::byte* to, std::int64_t to_stride) {
  constexpr auto kLine = static_cast<std::int64_t>(kCacheLine);
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(to) % kCacheLine == 0 && to_stride % kLine == 0;
  return kHasStreams && is_aligned && columns * to_stride > kStreamedSpan;
}

/// Transposes whole tiles, and then the partial columns at the right and the partial rows at the bottom.
template <std::size_t kUnit>
bool transpose_all(std::int64_t rows, std::int64_t columns, const std::byte* from, std::int64_t from_stride,
                   std::byte* to, std::int64_t to_stride) {
  constexpr auto kSide = static_cast<std::int64_t>(kCacheLine / kUnit), kStep = static_cast<std::int64_t>(kUnit);
  const std::int64_t whole_rows = rows - rows % kSide, whole_columns = columns - columns % kSide;
  if (is_streamed(columns, to, to_stride)) {
    transpose_tiles<kUnit, true>(whole_rows, whole_columns, from, from_stride, to, to_stride);
  } else {
    transpose_tiles<kUnit, false>(whole_rows, whole_columns, from, from_stride, to, to_stride);
  }
  transpose_edge<kUnit>(whole_rows, columns - whole_columns, from + whole_columns * kStep, from_stride,
                        to + whole_columns * to_stride, to_stride);
  transpose_edge<kUnit>(rows - whole_rows, columns, from + whole_rows * from_stride, from_stride,
                        to + whole_rows * kStep, to_stride);
  return true;
}

}  // namespace

bool transpose(std::int64_t rows, std::int64_t columns, const std::byte* from, std::int64_t from_stride, std::byte* to,
               std::int64_t to_stride, std::size_t unit) {
  switch (unit) {
    case 1:
      return transpose_all<1>(rows, columns, from, from_stride, to, to_stride);
    case 2:
      return transpose_all<2>(rows, columns, from, from_stride, to, to_stride);
    case 4:
      return transpose_all<4>(rows, columns, from, from_stride, to, to_stride);
    case 8:
      return transpose_all<8>(rows, columns, from, from_stride, to, to_stride);
    case 16:
      return transpose_all<16>(rows, columns, from, from_stride, to, to_stride);
    default:
      return false;
  }
}

}  // namespace shard

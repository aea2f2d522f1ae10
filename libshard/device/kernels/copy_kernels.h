/// \file
/// Bodies of the kernels that copy between strided places. Inside libshard/device only.
#pragma once

#include <cstdint>

#include "libshard/device/kernels/copy_shape.h"
#include "libshard/device/kernels/grid.h"

namespace shard::kernels {

/// Copies unit after unit in the order of the target, so that adjacent threads write adjacent units. Index is the type
/// of unit numbers: 32 bits if they suffice, because division is slow.
template <class Unit, class Index>
struct FlatCopy {
  CopyShape shape;
  const std::byte* from;
  std::byte* to;

  SHARD_KERNEL void operator()(std::int64_t block, int thread) const {
    for (int i = 0; i < kPerThread; ++i) {
      const std::int64_t unit = block * kPerBlock + i * kThreads + thread;
      if (unit < shape.units) copy(static_cast<Index>(unit));
    }
  }

 private:
  SHARD_KERNEL void copy(Index rest) const {
    std::int64_t in = 0, out = 0;
    for (int d = shape.count - 1; d >= 0; --d) {
      const CopyDim& dim = shape.dims[static_cast<std::size_t>(d)];
      const auto size = static_cast<Index>(dim.size);
      const auto at = static_cast<std::int64_t>(rest % size);
      rest /= size;
      in += at * dim.from;
      out += at * dim.to;
    }
    constexpr std::int64_t kUnit = sizeof(Unit);
    store(to + out * kUnit, load<Unit>(from + in * kUnit));
  }
};

/// A square of a plane, in shared memory. Rows are padded, so that a column's units use different banks.
template <class Unit>
struct PlaneTile {
  static constexpr int kSide = sizeof(Unit) < 4 ? 128 / static_cast<int>(sizeof(Unit)) : 32;
  static constexpr int kPadding = sizeof(Unit) < 4 ? 4 / static_cast<int>(sizeof(Unit)) : 1;
  Unit rows[kSide][kSide + kPadding];
};

/// Copies planes in tiles. `fill` reads a tile along the source's fastest dimension. Once all threads of the block have
/// done this, `empty` writes it along the target's.
template <class Unit>
struct TiledCopy {
  using Tile = PlaneTile<Unit>;
  CopyShape shape;
  const std::byte* from;
  std::byte* to;

  /// The number of blocks for a copy.
  static std::int64_t blocks(const CopyShape& shape) {
    std::int64_t count = 1;
    for (int d = 0; d < shape.count; ++d) {
      const std::int64_t size = shape.dims[static_cast<std::size_t>(d)].size;
      count *= d + 2 < shape.count ? size : tiles_along(size);
    }
    return count;
  }

  SHARD_KERNEL void fill(std::int64_t block, int thread, Tile& tile) const {
    const Origin origin = origin_of(block);
    const CopyDim& across = source_dim();
    const CopyDim& along = target_dim();
    for (int i = thread; i < Tile::kSide * Tile::kSide; i += kThreads) {
      const int row = i / Tile::kSide, column = i % Tile::kSide;
      if (origin.along + row >= along.size || origin.across + column >= across.size) continue;
      const std::int64_t unit = origin.in + row * along.from + column * across.from;
      tile.rows[row][column] = load<Unit>(from + unit * kUnit);
    }
  }

  SHARD_KERNEL void empty(std::int64_t block, int thread, const Tile& tile) const {
    const Origin origin = origin_of(block);
    const CopyDim& across = source_dim();
    const CopyDim& along = target_dim();
    for (int i = thread; i < Tile::kSide * Tile::kSide; i += kThreads) {
      const int row = i / Tile::kSide, column = i % Tile::kSide;
      if (origin.across + row >= across.size || origin.along + column >= along.size) continue;
      const std::int64_t unit = origin.out + row * across.to + column * along.to;
      store(to + unit * kUnit, tile.rows[column][row]);
    }
  }

 private:
  static constexpr std::int64_t kUnit = sizeof(Unit);

  /// The begin of a block's tile: its position in the plane, and its unit offsets on both sides.
  struct Origin {
    std::int64_t across, along, in, out;
  };

  SHARD_KERNEL static std::int64_t tiles_along(std::int64_t size) { return (size + Tile::kSide - 1) / Tile::kSide; }
  SHARD_KERNEL const CopyDim& source_dim() const { return shape.dims[static_cast<std::size_t>(shape.count - 2)]; }
  SHARD_KERNEL const CopyDim& target_dim() const { return shape.dims[static_cast<std::size_t>(shape.count - 1)]; }

  SHARD_KERNEL Origin origin_of(std::int64_t block) const {
    const CopyDim& across = source_dim();
    const CopyDim& along = target_dim();
    const std::int64_t along_tiles = tiles_along(along.size), across_tiles = tiles_along(across.size);
    Origin origin{};
    origin.along = block % along_tiles * Tile::kSide;
    block /= along_tiles;
    origin.across = block % across_tiles * Tile::kSide;
    block /= across_tiles;
    origin.in = origin.along * along.from + origin.across * across.from;
    origin.out = origin.along * along.to + origin.across * across.to;
    for (int d = shape.count - 3; d >= 0; --d) {
      const CopyDim& dim = shape.dims[static_cast<std::size_t>(d)];
      origin.in += block % dim.size * dim.from;
      origin.out += block % dim.size * dim.to;
      block /= dim.size;
    }
    return origin;
  }
};

/// Chooses between the kernels for one size of units.
template <class Unit, class Launch>
void launch_copy_of(const CopyShape& shape, const std::byte* from, std::byte* to, const Launch& launch) {
  if (shape.is_tiled) {
    launch.tiled(TiledCopy<Unit>{shape, from, to}, TiledCopy<Unit>::blocks(shape));
  } else if (shape.units <= UINT32_MAX) {
    launch.flat(FlatCopy<Unit, std::uint32_t>{shape, from, to}, blocks_for(shape.units));
  } else {
    launch.flat(FlatCopy<Unit, std::uint64_t>{shape, from, to}, blocks_for(shape.units));
  }
}

/// Calls `launch.flat(body, blocks)` or `launch.tiled(body, blocks)` with the body of the copy. Calls neither if there
/// is nothing to copy.
template <class Launch>
void launch_copy(const CopyShape& shape, const std::byte* from, std::byte* to, const Launch& launch) {
  if (shape.units == 0) return;
  switch (shape.unit_bytes) {
    case 1:
      return launch_copy_of<std::uint8_t>(shape, from, to, launch);
    case 2:
      return launch_copy_of<std::uint16_t>(shape, from, to, launch);
    case 4:
      return launch_copy_of<std::uint32_t>(shape, from, to, launch);
    case 8:
      return launch_copy_of<std::uint64_t>(shape, from, to, launch);
    default:
      return launch_copy_of<Unit16>(shape, from, to, launch);
  }
}

}  // namespace shard::kernels

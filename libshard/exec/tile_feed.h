/// \file Tiles with elements from other ranks: the boxes that a tile needs, and the interface through which `execute`
///   receives tiles when their boxes have arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "libshard/core/box.h"
#include "libshard/exec/checksums.h"
#include "libshard/plan/plan.h"

namespace shard {

/// A box of a unit in memory, packed row-major. Ownership: a view.
struct ReceivedBox {
  std::span<const std::int64_t> offsets, sizes;
  std::byte* data = nullptr;
  bool is_on_device = false;  ///< Whether `data` is an address in the memory of the executor's device.
};

/// Threads: any.
class TileFeed {
 public:
  virtual ~TileFeed() = default;
  /// Receives for each tile whether an earlier run wrote it. `next` then returns only the others. Called once, before
  /// all other functions.
  virtual void set_written(std::vector<std::uint8_t> written) = 0;
  /// The next tile that is ready to be copied. Calls `before_waiting` before it waits for one. Returns nothing if all
  /// tiles were returned, or after `abort`. \throws Error kInterrupted
  virtual std::optional<std::int64_t> next(const std::function<void()>& before_waiting) = 0;
  /// The data of a source piece (its number in the unit) that has arrived for a tile from `next`. Nothing: the piece
  /// must be read.
  virtual std::optional<ReceivedBox> received(std::int64_t tile, std::uint32_t piece) = 0;
  /// Whether data that arrived for a tile is in the device's memory.
  virtual bool has_on_device(std::int64_t /*tile*/) { return false; }
  virtual void done(std::int64_t tile) = 0;
  /// Reports that a worker failed, so that `next` stops waiting.
  virtual void abort() = 0;
};

/// Calls `each` with every source piece (its number in the unit) from which a tile needs elements, in order, and with
/// the smallest box around those elements. A tile needs the part of a piece that overlaps both the tile and the unit's
/// target pieces.
void for_each_need(const Plan& plan, const Unit& unit, std::int64_t tile,
                   const std::function<void(std::uint32_t piece, const Box& box)>& each);
/// Does the same for a part of a tile.
void for_each_need(const Plan& plan, const Unit& unit, const Box& tile_part,
                   const std::function<void(std::uint32_t piece, const Box& box)>& each);

/// Appends to `runs` the CRC-32 of every run of the piece's storage in a box that another rank read and sent, if the
/// storage has a checksum to which they contribute. \returns false, with nothing appended, if they are unknown because
/// the box is on a device, or comes in too many runs. A later run must then read it again. Cost: the CRC-32.
bool sum_received(const Catalog& source, const Piece& piece, const ReceivedBox& received, std::int64_t element_bytes,
                  std::vector<CrcRun>& runs);

}  // namespace shard

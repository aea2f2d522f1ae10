/// \file Copies tiles through a device: reads them in stored order, permutes and converts them on the device, and
///   writes them in target order. Inside libshard/exec only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "libshard/device/device.h"
#include "libshard/exec/piece_reader.h"
#include "libshard/exec/tile_boxes.h"
#include "libshard/exec/tile_feed.h"
#include "libshard/exec/tile_work.h"
#include "libshard/exec/tile_writer.h"
#include "libshard/plan/order.h"

namespace shard {

/// The pinned and device memory of all workers in a run.
struct DeviceShare {
  std::int64_t slot_bytes = 0;  ///< The size of the largest tile, before or after conversion.
  std::int64_t staging_bytes = 0;
  int workers = 1;
};
/// Chooses as many workers as fit: pinned memory uses at most half of `max_memory_bytes`, and the device's at most all.
DeviceShare device_share(const Plan& plan, std::int64_t max_memory_bytes, int threads);

/// A worker with two slots: while one slot's tile is on the device, the worker reads or writes the other's. The steps
/// of each slot are:
///
///     files -read-> [pinned] -in-> [raw] -permute-> [permuted] -cast-> [raw] -out-> [pinned] -write-> files
///
/// `in`, the two operations and `out` run on three streams. Events make each step wait for the one before it. A slot is
/// filled again only after its tile is written.
class DeviceWorker {
 public:
  /// Allocates its share of memory with its first tiles. Ownership: all arguments must outlive it.
  DeviceWorker(const TileWork& work, TileFeed& feed, const DeviceShare& share);
  /// Waits for the device, even if tiles are unfinished.
  ~DeviceWorker();

  /// Whether a tile goes through the device. Tiles that are copied unchanged do only if their data is already on it.
  bool takes(std::int64_t tile) const;
  /// Reads a tile and starts its work on the device. Writes the tile before the last one.
  /// \throws Error kResource  too little memory; and the errors of reading, writing and the device
  void begin(std::int64_t tile);
  /// Writes all tiles that are still in a slot.
  void finish();

 private:
  /// The buffers that a tile's part occupies between begin and finish.
  struct Slot {
    std::unique_ptr<DeviceBuffer> pinned, raw, permuted;
    std::unique_ptr<DeviceEvent> loaded, computed, done;
    TileBoxes boxes;
    const Unit* unit = nullptr;  ///< Null: the slot is free.
    std::int64_t tile = 0;
    bool ends_tile = false;
    TileRecord read;        ///< The record of what was read.
    bool is_summed = true;  ///< Whether its `sources` contain everything that a later run needs.
  };
  /// A box of source elements in the device's memory.
  struct Loaded {
    Box box;
    Numbers strides;
    const std::byte* data;
  };

  void take_memory(Slot& slot);
  void begin(const Unit& unit, const Box& box, std::int64_t tile, bool ends_tile);
  std::int64_t load(Slot& slot, const Box& box);
  void compute(Slot& slot);
  void finish(Slot& slot);

  const TileWork& work_;
  TileFeed& feed_;
  const DeviceShare share_;
  PieceReader piece_reader_;
  TileWriter writer_;
  std::unique_ptr<DeviceStream> in_, operations_, out_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;  ///< The slot to fill next. The other one was filled before it.
  std::vector<std::byte> staging_;
  std::vector<Loaded> loaded_;
  TileRecord record_;      ///< The record of the tile that is being written.
  bool is_summed_ = true;  ///< See Slot::is_summed.
};

}  // namespace shard

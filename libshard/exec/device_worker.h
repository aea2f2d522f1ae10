/// \file
/// Copies tiles through a device: they are read as they lie, permuted and converted there, and written as they shall
/// lie. Inside libshard/exec only.
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

/// Pinned and device memory of the workers of a run.
struct DeviceShare {
  std::int64_t slot_bytes = 0;  ///< The largest tile, before or after it is converted.
  std::int64_t staging_bytes = 0;
  int workers = 1;
};
/// As many workers as fit: pinned memory takes at most half of `max_memory_bytes`, the device's at most all of it.
DeviceShare device_share(const Plan& plan, std::int64_t max_memory_bytes, int threads);

/// A worker has two slots: while one's tile is on the device, the other's is read or written. Of each slot
///
///     files --read--> [pinned] --in--> [raw] --permute--> [permuted] --cast--> [raw] --out--> [pinned] --write-->
///     files
///
/// `in`, the two operations and `out` are three streams, and events hold back what needs the step before it. A slot is
/// filled again only once its tile is written.
class DeviceWorker {
 public:
  /// Takes its share of memory with its first tiles. Ownership: all that it is given must outlive it.
  DeviceWorker(const TileWork& work, TileFeed& feed, const DeviceShare& share);
  /// Waits for the device, whatever was not finished.
  ~DeviceWorker();

  /// Whether a tile goes through the device. Bytes that move as they are do not, unless they lie there already.
  bool takes(std::int64_t tile) const;
  /// Reads a tile and sends it through the device; writes the one before the last. \throws Error kResource  too little
  /// memory; what reading, writing and the device throw
  void begin(std::int64_t tile);
  /// Writes all tiles that were begun.
  void finish();

 private:
  /// Where a tile's part is between begin and finish.
  struct Slot {
    std::unique_ptr<DeviceBuffer> pinned, raw, permuted;
    std::unique_ptr<DeviceEvent> loaded, computed, done;
    TileBoxes boxes;
    const Unit* unit = nullptr;  ///< Null: the slot is free.
    std::int64_t tile = 0;
    bool ends_tile = false;
    std::vector<CrcRun> sources;  ///< As in TileRecord.
    bool is_summed = true;        ///< `sources` says all that a later run must know.
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
  std::size_t next_ = 0;  ///< The slot that is filled next; the other was filled before it.
  std::vector<std::byte> staging_;
  std::vector<Loaded> loaded_;
  TileRecord record_;      ///< Of the tile that is being written.
  bool is_summed_ = true;  ///< As Slot::is_summed.
};

}  // namespace shard

/// \file
/// Tiles of a plan that wait together for boxes of other ranks, and the memory that those arrive in. Inside
/// libshard/job only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "libshard/exec/tile_feed.h"
#include "libshard/job/exchange_schedule.h"
#include "libshard/job/piece_transport.h"
#include "libshard/plan/plan.h"
#include "libshard/ranks/wire.h"

namespace shard {

/// The rank that reads a source piece for this one.
using SenderOf = std::function<int(const Piece&)>;

/// What a tile needs of ranks other than `own`, in the order in which it is asked for.
std::vector<BoxNeed> needs_of(const Plan& plan, std::int64_t tile, const SenderOf& sender_of, int own);

struct AwaitedTile {
  struct Box {
    std::uint32_t piece;  ///< Of the tile's unit.
    int dims, sender;
    std::size_t numbers;  ///< Where its offsets and sizes begin in the batch's numbers.
    std::int64_t bytes;
    std::byte* data = nullptr;
  };
  std::int64_t tile = 0;
  std::vector<Box> boxes;   ///< By piece.
  std::size_t missing = 0;  ///< Boxes that have not arrived.
};

/// Threads: one at a time; `received` by any while nothing is added.
class ExchangeBatch {
 public:
  /// Adds a tile, and what is to be asked of each rank to `requests`.
  void add(const Plan& plan, std::int64_t tile, const SenderOf& sender_of, int own,
           std::map<int, WireWriter>& requests);
  /// Of all boxes.
  std::int64_t bytes() const;
  /// Gives every box its part of `memory`, of bytes(): boxes of one rank follow one another as they will arrive. Called
  /// once, after all tiles.
  void lay_out(PieceMemory memory);

  bool awaits(int sender) const;
  /// Where the next `boxes` boxes of a rank go; empty: it has not so many to send.
  std::span<std::byte> place_for(int sender, std::size_t boxes);
  /// Takes note that they have arrived. \returns the tiles that are complete now
  std::vector<AwaitedTile*> arrive(int sender, std::size_t boxes);
  bool has_arrived() const { return missing_ == 0; }
  /// Takes note that a tile was written. \returns whether all are
  bool write() { return --unwritten_ == 0; }
  ReceivedBox received(const AwaitedTile::Box& box) const;

 private:
  /// What comes from one rank.
  struct Region {
    std::byte* data = nullptr;
    std::int64_t bytes = 0, arrived_bytes = 0;
    std::vector<std::pair<AwaitedTile*, std::int64_t>> boxes;  ///< Each box's tile and bytes.
    std::size_t arrived = 0;
  };

  std::deque<AwaitedTile> tiles_;
  std::vector<std::int64_t> numbers_;
  std::map<int, Region> regions_;
  PieceMemory memory_;
  std::size_t missing_ = 0, unwritten_ = 0;  ///< Boxes; tiles.
};

}  // namespace shard

/// \file Exchange: copies a plan whose data is partly read by other ranks. Inside libshard/job only.
///
/// Every rank writes the tiles of its own plan. If a tile needs data of a piece that a different rank holds, that rank
/// reads the data and sends it (exchange_schedule.h defines the order). On each rank, three things happen at the same
/// time: workers write complete tiles, other threads read and pack the data for the next round, and the group's thread
/// transfers the current round:
///
///         holder: read, pack --> send buffer --(round)--> memory of a batch --> tile's buffer --> write :writer
///
/// A round has up to three exchanges between ranks that still have boxes for each other: counts, requests, boxes.
/// Before the first round, once each rank knows which of its tiles an earlier run wrote, the ranks announce how much
/// they will request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/core/arena.h"
#include "libshard/core/box.h"
#include "libshard/exec/execute.h"
#include "libshard/exec/tile_feed.h"
#include "libshard/job/exchange_schedule.h"
#include "libshard/job/file_holders.h"
#include "libshard/job/piece_transport.h"
#include "libshard/plan/plan.h"
#include "libshard/ranks/collective_step.h"
#include "libshard/ranks/wire.h"

namespace shard {

/// Appends a request. `box` is relative to the corner of `piece`, and the offsets of the piece itself are 0.
void write_request(WireWriter& to, const Piece& piece, const Box& box, std::int64_t element_bytes);

struct BoxRequest {
  Piece piece;
  Dims offsets, sizes;  ///< The offsets and sizes of the box.
  std::int64_t element_bytes = 1, bytes = 0;
};

/// The requests of one message, and the numbers to which they refer.
struct RequestList {
  std::vector<BoxRequest> boxes;
  std::unique_ptr<Arena> arena = std::make_unique<Arena>();
};

/// \throws Error kPeer  an invalid request: outside its piece, a piece outside the file, or larger than `limit_bytes`.
RequestList read_requests(std::span<const std::byte> message, const Catalog& source, std::int64_t limit_bytes);

/// The rank that reads a source piece for this one.
using SenderOf = std::function<int(const Piece&)>;

/// Boxes that a tile needs from ranks other than `own`, in the order of the requests.
std::vector<BoxNeed> needs_of(const Plan& plan, std::int64_t tile, const SenderOf& sender_of, int own);

struct AwaitedTile {
  struct Box {
    std::uint32_t piece;  ///< Its number in the tile's unit.
    int dims, sender;
    std::size_t numbers;  ///< The begin of its offsets and sizes in the batch's numbers.
    std::int64_t bytes;
    std::byte* data = nullptr;
  };
  std::int64_t tile = 0;
  std::vector<Box> boxes;   ///< Sorted by piece.
  std::size_t missing = 0;  ///< The number of boxes that have not arrived.
};

/// A group of tiles whose boxes are requested together. Threads: one; `received`: any, while nothing is added.
class ExchangeBatch {
 public:
  /// Adds a tile. Appends the requests to each rank to `requests`.
  void add(const Plan& plan, std::int64_t tile, const SenderOf& sender_of, int own,
           std::map<int, WireWriter>& requests);
  /// The size of all boxes.
  std::int64_t bytes() const;
  /// Assigns every box its part of `memory`, which has bytes() bytes. The boxes of one rank are adjacent, in the order
  /// of their arrival. Called once, after all tiles are added.
  void lay_out(PieceMemory memory);

  bool awaits(int sender) const;
  /// The memory for the next `boxes` boxes from a rank. Empty if it has fewer to send.
  std::span<std::byte> place_for(int sender, std::size_t boxes);
  /// Records that the next boxes have arrived. \returns the tiles that are now complete
  std::vector<AwaitedTile*> arrive(int sender, std::size_t boxes);
  bool has_arrived() const { return missing_ == 0; }
  /// Records that a tile was written. \returns whether all tiles are written
  bool write() { return --unwritten_ == 0; }
  ReceivedBox received(const AwaitedTile::Box& box) const;

 private:
  /// Boxes that arrive from one rank.
  struct Region {
    std::byte* data = nullptr;
    std::int64_t bytes = 0, arrived_bytes = 0;
    std::vector<std::pair<AwaitedTile*, std::int64_t>> boxes;  ///< The tile and size of each box.
    std::size_t arrived = 0;
  };

  std::deque<AwaitedTile> tiles_;
  std::vector<std::int64_t> numbers_;
  std::map<int, Region> regions_;
  PieceMemory memory_;
  std::size_t missing_ = 0, unwritten_ = 0;  ///< Counts of boxes and of tiles.
};

/// The objects that an exchange works with. Ownership: all must outlive it.
struct ExchangeOf {
  const Plan& plan;  ///< This rank's plan, made for exchange_unit() of the memory.
  const Reader& reader;
  const FileHolders& holders;
  SourceChecks& source_checks;
  Progress& progress;
  PieceTransport& transport;
  std::int64_t max_memory_bytes;
  int threads;
};

class Exchange final : public AwaitedTraffic, public TileFeed {
 public:
  Exchange(const ExchangeOf& of, int rank, int ranks);
  /// The work of the step whose traffic this is. `copy` runs the executor with this object as its feed. Returns when
  /// this rank's tiles are written and all data for other ranks was sent. \throws Error  from `copy` or from a read
  void run(const std::function<void()>& copy, const std::stop_token& stop);

  /// Visits the whole plan. Cost: linear in tiles and the boxes that they need.
  void set_written(std::vector<std::uint8_t> written) override;
  std::optional<std::int64_t> next(const std::function<void()>& before_waiting) override;
  std::optional<ReceivedBox> received(std::int64_t tile, std::uint32_t piece) override;
  bool has_on_device(std::int64_t tile) override;
  void done(std::int64_t tile) override;
  void abort() override;

  std::int64_t word() override;
  bool waits() const override;
  bool move(Group& group, std::span<const std::int64_t> words) override;

 private:
  /// The boxes of one round, for all ranks that receive some.
  struct Shipment {
    std::vector<Outlet::Grant> grants;
    PieceMemory memory;
    std::vector<BoxRequest> boxes;     ///< In the order of the memory.
    std::vector<std::int64_t> begins;  ///< The position of each box in the memory.
    std::vector<RequestList> lists;    ///< Lists that are used up. They own the boxes' numbers.
    std::size_t taken = 0, packed = 0;
    bool is_packed() const { return packed == boxes.size(); }
  };
  struct Owed {
    std::deque<RequestList> lists;
    std::size_t used = 0;  ///< The number of used requests of the front list.
  };

  void agree(Group& group);
  void prepare_round();
  void open_batch();
  bool asks(std::size_t rank) const;
  bool sends(std::size_t rank) const;
  std::vector<std::int64_t> exchange_controls(Group& group);
  void exchange_requests(Group& group, std::span<const std::int64_t> sizes);
  Shipment make_shipment();
  void exchange_boxes(Group& group, const Shipment& sent, std::span<const std::int64_t> boxes);
  ExchangeBatch& batch_for(int sender);
  std::span<std::byte> place_for(int sender, std::size_t boxes);
  void take_arrived(int sender, std::int64_t boxes);
  void pack(const std::stop_token& stop);
  bool is_agreed() const { return meetings_.has_value(); }
  bool is_finished() const { return is_agreed() && to_receive_ == 0 && to_send_ == 0; }
  bool must_end() const { return is_stopped_ || is_aborted_; }

  const ExchangeOf of_;
  const Catalog& source_;
  const int rank_;
  const std::int64_t unit_bytes_;
  const SenderOf sender_of_;

  // mutex_ guards everything below.
  enum class Tile : std::uint8_t { kLocal, kRemote, kWritten };
  std::vector<Tile> tiles_;                    ///< By tile. kRemote: other ranks have boxes of it.
  std::vector<std::int64_t> expect_, owe_;     ///< By rank: boxes not yet received from it, and not yet sent.
  std::int64_t to_receive_ = 0, to_send_ = 0;  ///< The sums of the two.
  bool is_known_ = false;                      ///< Tiles of earlier runs, and so the requests, are known.
  bool is_aborted_ = false, is_copied_ = false, is_over_ = false;
  int idle_ = 0;  ///< The number of threads that wait in `next`.
  std::exception_ptr failure_;
  std::int64_t next_local_ = 0, next_remote_ = 0;  ///< Numbers of tiles.
  std::size_t remote_left_ = 0;                    ///< Tiles with boxes of other ranks that `next` has yet to return.
  std::deque<AwaitedTile*> ready_;
  std::map<std::int64_t, std::pair<ExchangeBatch*, AwaitedTile*>> given_;  ///< By tile, until the tile is done.
  std::deque<std::unique_ptr<ExchangeBatch>> batches_;
  std::optional<Meetings> meetings_;  ///< Set once the ranks know how much each requests from each other one.
  std::int64_t round_ = 0;
  Intake intake_;
  Outlet outlet_;
  std::map<int, Owed> owed_;
  Shipment shipment_;  ///< The shipment that is being packed, or is ready for the next round.
  bool is_round_prepared_ = false;
  /// Requests until the next round in which the two ranks meet; one text per batch.
  std::map<int, WireWriter> requests_;
  std::map<int, Bytes> messages_;  ///< The messages of this round.
};

}  // namespace shard

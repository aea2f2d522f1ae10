/// \file
/// Exchange: copies a plan of which other ranks read a part. Inside libshard/job only.
///
/// Every rank writes the tiles of its own plan; what a tile needs of a piece that another rank holds, that rank reads
/// and sends (exchange_schedule.h has the order). Meanwhile on each rank: workers write tiles that are complete, other
/// threads read and pack what goes out in the next round, and the group's thread moves the present one:
///
///     holder: read, pack --> send buffer --(round)--> memory of a batch --> tile's buffer --> write :writer
///
/// A round is up to three exchanges between ranks that still have boxes for each other: counts, requests, boxes. Before
/// the first one the ranks tell how much they will want, once each knows which of its tiles an earlier run wrote.
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
#include "libshard/ranks/step_traffic.h"
#include "libshard/ranks/wire.h"

namespace shard {

/// `box` is counted from the corner of `piece`, whose own offsets are 0.
void write_request(WireWriter& to, const Piece& piece, const Box& box, std::int64_t element_bytes);

struct BoxRequest {
  Piece piece;
  Dims offsets, sizes;  ///< The box.
  std::int64_t element_bytes = 1, bytes = 0;
};

/// The requests of one message, and the numbers that they point to.
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
  /// Sum over all boxes.
  std::int64_t bytes() const;
  /// Gives every box its part of `memory`, of bytes(): boxes of one rank follow one another as they will arrive. Called
  /// once, after all tiles.
  void lay_out(PieceMemory memory);

  bool awaits(int sender) const;
  /// Memory for the next `boxes` boxes of a rank; empty if it has fewer to send.
  std::span<std::byte> place_for(int sender, std::size_t boxes);
  /// Takes note that they have arrived. \returns the tiles that are complete now
  std::vector<AwaitedTile*> arrive(int sender, std::size_t boxes);
  bool has_arrived() const { return missing_ == 0; }
  /// Takes note that a tile was written. \returns whether all are
  bool write() { return --unwritten_ == 0; }
  ReceivedBox received(const AwaitedTile::Box& box) const;

 private:
  /// Boxes that arrive from one rank.
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

/// What an exchange works on. Ownership: all must outlive it.
struct ExchangeOf {
  const Plan& plan;  ///< This rank's, made for exchange_unit() of the memory.
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
  /// The work of the step whose traffic this is: `copy` runs the executor with this as its feed. Returns when this
  /// rank's tiles are written and all that others want was sent. \throws Error  what `copy` or a read throws
  void run(const std::function<void()>& copy, const std::stop_token& stop);

  /// Looks through the whole plan. Cost: linear in tiles and the boxes that they need.
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
  /// A round's boxes for all ranks that get some.
  struct Shipment {
    std::vector<Outlet::Grant> grants;
    PieceMemory memory;
    std::vector<BoxRequest> boxes;     ///< In the order of the memory.
    std::vector<std::int64_t> begins;  ///< Of each box.
    std::vector<RequestList> lists;    ///< That were used up; they hold the boxes' numbers.
    std::size_t taken = 0, packed = 0;
    bool is_packed() const { return packed == boxes.size(); }
  };
  struct Owed {
    std::deque<RequestList> lists;
    std::size_t used = 0;  ///< Of the front one.
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

  // mutex_ guards all below.
  enum class Tile : std::uint8_t { kLocal, kRemote, kWritten };
  std::vector<Tile> tiles_;                    ///< What each needs: its own rank, another one too, or nothing.
  std::vector<std::int64_t> expect_, owe_;     ///< By rank: boxes not yet received from it, not yet sent to it.
  std::int64_t to_receive_ = 0, to_send_ = 0;  ///< Their sums.
  bool is_known_ = false;                      ///< Which tiles an earlier run wrote, and so what is wanted of others.
  bool is_aborted_ = false, is_copied_ = false, is_over_ = false;
  int idle_ = 0;  ///< Threads that wait in `next`.
  std::exception_ptr failure_;
  std::int64_t next_local_ = 0, next_remote_ = 0;  ///< Tiles.
  std::size_t remote_left_ = 0;                    ///< Tiles with boxes of other ranks that `next` has not given out.
  std::deque<AwaitedTile*> ready_;
  std::map<std::int64_t, std::pair<ExchangeBatch*, AwaitedTile*>> given_;  ///< By tile, until it is done.
  std::deque<std::unique_ptr<ExchangeBatch>> batches_;
  std::optional<Meetings> meetings_;  ///< Once the ranks know how much each will want of each.
  std::int64_t round_ = 0;
  Intake intake_;
  Outlet outlet_;
  std::map<int, Owed> owed_;
  Shipment shipment_;  ///< Being packed, or packed for the next round.
  bool is_round_prepared_ = false;
  /// Until the next round in which the ranks meet; a text for each batch.
  std::map<int, WireWriter> requests_;
  std::map<int, Bytes> messages_;  ///< Of this round.
};

}  // namespace shard

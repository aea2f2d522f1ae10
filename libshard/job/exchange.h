/// \file
/// Exchange: copies a plan of which other ranks read a part. Inside libshard/job only.
///
/// Every rank writes the tiles of its own plan; what a tile needs of a piece that another rank holds, that rank reads
/// and sends (exchange_schedule.h has the order). Meanwhile on each rank: workers write tiles that are complete, other
/// threads read and pack what goes out in the next round, and the group's thread moves the present one:
///
///     holder: read, pack --> send buffer --(round)--> memory of a batch --> tile's buffer --> write :writer
///
/// A round is up to three exchanges between ranks that still have boxes for each other: counts, requests, boxes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <vector>

#include "libshard/exec/execute.h"
#include "libshard/job/box_request.h"
#include "libshard/job/exchange_schedule.h"
#include "libshard/job/file_holders.h"
#include "libshard/ranks/step_traffic.h"

namespace shard {

/// What an exchange works on. Ownership: all must outlive it.
struct ExchangeOf {
  const Plan& plan;  ///< This rank's, made for exchange_unit() of the memory.
  const Reader& reader;
  const FileHolders& holders;
  SourceChecks& source_checks;
  Progress& progress;
  std::int64_t max_memory_bytes;
  int threads;
};

class Exchange final : public StepTraffic, public TileFeed {
 public:
  /// Looks through the whole plan. Cost: linear in tiles and the boxes that they need.
  Exchange(const ExchangeOf& of, int rank, int ranks);
  /// Tells the ranks how much each will want of each. Collective. \throws Error kPeer
  void agree(Group& group);
  /// The work of the step whose traffic this is: `copy` runs the executor with this as its feed. Returns when this
  /// rank's tiles are written and all that others want was sent. \throws Error  what `copy` or a read throws
  void run(const std::function<void()>& copy, const std::stop_token& stop);

  std::optional<std::int64_t> next(const std::function<void()>& before_waiting) override;
  std::optional<ReceivedBox> received(std::int64_t tile, std::uint32_t piece) override;
  void done(std::int64_t tile) override;
  void abort() override;

  void begin(StepHandle& step) override;
  void end() override;
  void stop() override;
  std::int64_t word() override;
  bool move(Group& group, std::span<const std::int64_t> words) override;

 private:
  /// A box that a tile of a batch waits for.
  struct AwaitedBox {
    std::uint32_t piece;
    std::size_t numbers;  ///< Where its offsets and sizes begin in Batch::numbers.
    int dims;
    int sender;
    std::int64_t bytes;
    const std::byte* data = nullptr;
  };
  struct AwaitedTile {
    std::int64_t tile;
    std::vector<AwaitedBox> boxes;
    std::size_t missing;
  };
  /// What comes from one rank for a batch, one box after another in the order of the tiles.
  struct Region {
    std::byte* data = nullptr;
    std::int64_t bytes = 0, arrived_bytes = 0;
    std::vector<std::pair<AwaitedTile*, std::int64_t>> boxes;  ///< Each box's tile and bytes.
    std::size_t arrived = 0;
  };
  struct Batch {
    std::deque<AwaitedTile> tiles;
    std::vector<std::int64_t> numbers;
    std::map<int, Region> regions;
    std::unique_ptr<std::byte[]> memory;
    std::int64_t bytes = 0;
    std::size_t missing = 0, unwritten = 0;  ///< Boxes; tiles.
  };
  /// A round's boxes for all ranks that get some.
  struct Shipment {
    std::vector<Outlet::Grant> grants;
    std::unique_ptr<std::byte[]> memory;
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

  int sender_of(const Piece& piece) const;
  void prepare_round();
  void open_batch();
  void add_tile(Batch& batch, std::int64_t tile, std::map<int, WireWriter>& requests);
  void lay_out(Batch& batch);
  std::vector<std::int64_t> exchange_controls(Group& group);
  void exchange_requests(Group& group, std::span<const std::int64_t> sizes);
  Shipment make_shipment();
  void exchange_boxes(Group& group, const Shipment& sent, std::span<const std::int64_t> boxes);
  Batch& batch_for(int sender);
  std::span<std::byte> place_for(int sender, std::size_t boxes);
  void take_arrived(int sender, std::int64_t boxes);
  void pack(const std::stop_token& stop);
  bool is_finished() const { return to_receive_ == 0 && to_send_ == 0; }
  bool must_end() const { return is_stopped_ || is_aborted_; }

  const ExchangeOf of_;
  const Catalog& source_;
  const int rank_;
  const std::int64_t unit_bytes_, most_boxes_;
  std::vector<bool> is_remote_;                ///< By tile: it needs a box of another rank.
  std::vector<std::int64_t> expect_, owe_;     ///< By rank: boxes not yet received from it, not yet sent to it.
  std::int64_t to_receive_ = 0, to_send_ = 0;  ///< Their sums.

  std::mutex mutex_;  ///< Guards all below.
  std::condition_variable changed_;
  StepHandle* step_ = nullptr;
  bool is_stopped_ = false, is_aborted_ = false, is_over_ = false;
  std::exception_ptr failure_;
  std::int64_t next_local_ = 0, next_remote_ = 0;  ///< Tiles.
  std::size_t remote_left_ = 0;                    ///< Tiles with boxes of other ranks that `next` has not given out.
  std::deque<AwaitedTile*> ready_;
  std::map<std::int64_t, std::pair<Batch*, AwaitedTile*>> given_;  ///< By tile, until it is done.
  std::deque<std::unique_ptr<Batch>> batches_;
  Intake intake_;
  Outlet outlet_;
  std::map<int, Owed> owed_;
  Shipment shipment_;  ///< Being packed, or packed for the next round.
  bool is_round_prepared_ = false;
  std::map<int, WireWriter> requests_;  ///< Of the next round; a text for each batch.
  std::map<int, Bytes> messages_;       ///< Of this round.
};

}  // namespace shard

/// \file The order in which pieces are sent between ranks: which rank requests how much, and which sends how much in
///   each round. Pure.
///
/// Each rank writes tiles of its own plan. A box is the data that a tile needs from a different rank. The writer of the
/// tiles groups them, in order, into batches of bounded size and requests the boxes of a batch. The ranks that hold
/// them send them in the order of the requests, in rounds in which all ranks take part. In each round, a rank sends as
/// much as its buffer can hold, divided fairly among the receivers. The content of a round depends only on the plans,
/// so two runs of one job send the same data in the same rounds.
///
/// A rank knows its own plan and the requests that it received, but nothing about the traffic between other ranks. A
/// rank that sends to many ranks meets some of them in each round, in turn, so that no number on a rank grows with the
/// square of the ranks.
///
/// No rank waits forever, for three reasons. A received batch waits only for its writer's disk. A rank with requests
/// can always send. A rank that may not open a batch yet has two batches on their way, or one to write.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

namespace shard {

inline constexpr std::int64_t kExchangeParts = 8;
/// The size of one part of a rank's memory: one part is for tiles, up to three are for batches, two for data to send,
/// and one for the threads that read it. An eighth of the memory is reserved for lists. \throws Error kInvalidArgument
/// the memory is too small
std::int64_t exchange_unit(std::int64_t max_memory_bytes);

/// The largest number of boxes that a batch may request from one rank. It bounds the lists that a rank receives,
/// regardless of the number of ranks.
std::int64_t most_boxes(int ranks);

/// Determines which ranks communicate in a round. A sender and a writer that still have boxes for each other meet in
/// every round. If a sender has many writers, it meets each of them only once in several rounds.
class Meetings {
 public:
  /// \param writers  the number of ranks to which this one sends.
  Meetings(int rank, int ranks, std::int64_t writers);
  /// The number of rounds in which this rank meets each of its receivers once. set_period sets that of other senders.
  std::int64_t own_period() const { return own_period_; }
  void set_period(int sender, std::int64_t period) { periods_[static_cast<std::size_t>(sender)] = period; }
  bool as_sender(std::int64_t round, int writer) const { return (round + rank_ + writer) % own_period_ == 0; }
  bool as_writer(std::int64_t round, int sender) const {
    return (round + sender + rank_) % periods_[static_cast<std::size_t>(sender)] == 0;
  }

 private:
  const int rank_;
  const std::int64_t own_period_;
  std::vector<std::int64_t> periods_;
};

/// A box that a tile needs from a different rank.
struct BoxNeed {
  int sender = 0;
  std::int64_t bytes = 0;
};

/// The limit of a batch. The boxes of its tiles use at most a unit of memory, and there are not too many from one rank.
/// A batch always has at least one tile.
class BatchLimit {
 public:
  BatchLimit(std::int64_t unit_bytes, int ranks) : unit_bytes_(unit_bytes), most_boxes_(most_boxes(ranks)) {}
  /// Whether a tile that needs these boxes still belongs to the batch. If so, counts it.
  bool takes(std::span<const BoxNeed> boxes);

 private:
  const std::int64_t unit_bytes_, most_boxes_;
  bool is_empty_ = true;
  std::int64_t bytes_ = 0;
  std::map<int, std::int64_t> boxes_;  ///< By sender.
};

/// Counts a writer's batches.
class Intake {
 public:
  /// Whether to request the next batch: fewer than two are on their way.
  bool wants_batch() const { return opened_ - received_ < kOnTheWay; }
  /// Whether there is memory for the next batch: fewer than three are on their way or to be written.
  bool has_room() const { return opened_ - written_ < kInMemory; }
  void open() { ++opened_; }
  void receive() { ++received_; }
  void write() { ++written_; }
  std::int64_t opened() const { return opened_; }

 private:
  static constexpr std::int64_t kOnTheWay = 2, kInMemory = 3;
  std::int64_t opened_ = 0, received_ = 0, written_ = 0;
};

/// The requests that a rank received and has not answered yet.
class Outlet {
 public:
  /// The boxes for one rank in a round: its next `boxes` boxes, all of one batch.
  struct Grant {
    int rank = 0;
    std::int64_t boxes = 0, bytes = 0;
  };

  /// Adds the request of `rank` for a batch with boxes of these sizes.
  void ask(int rank, std::span<const std::int64_t> box_bytes);
  /// Chooses the boxes of the next round for the ranks that it meets: at most `limit_bytes`, but always at least one
  /// box, sorted by rank. Ranks take turns by boxes, and a different rank begins in each round. Cost: linear in waiting
  /// ranks and boxes.
  std::vector<Grant> next_round(std::int64_t limit_bytes, const std::function<bool(int rank)>& meets);
  bool is_empty() const { return waiting_.empty(); }

 private:
  struct Batch {
    std::vector<std::int64_t> box_bytes;
    std::size_t sent = 0;
  };
  std::map<int, std::deque<Batch>> waiting_;  ///< By rank. No queue is empty.
  int begins_ = 0;                            ///< The next round begins with the first waiting rank from this one on.
};

}  // namespace shard

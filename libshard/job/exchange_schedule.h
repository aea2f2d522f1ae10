/// \file
/// The order in which pieces travel between ranks: who asks for how much, and who sends what in which round. Pure.
///
/// Each rank writes tiles of its own plan. What a tile needs of another rank is a box. Its writer takes tiles in order
/// into batches of bounded bytes and asks for the boxes of a batch; the ranks that hold them send them in the order in
/// which they were asked for, in rounds that all ranks make together, as much in each as their buffer takes and fairly
/// over those who ask. What a round holds follows from the plans alone: two runs of one job send the same in the same
/// rounds.
///
/// A rank knows its own plan and what it was asked for, nothing of what others do among themselves; no number here
/// grows with ranks squared. That nobody waits for ever: a batch that was received waits for its writer's disk alone; a
/// rank that has been asked can always send; and a rank that may not open a batch yet has two that are on their way, or
/// one to write.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

namespace shard {

/// Parts of the memory of a rank: one for tiles, up to three for batches, two for what is sent, one for threads that
/// read it; an eighth is left for lists. \throws Error kInvalidArgument  it is too little
std::int64_t exchange_unit(std::int64_t max_memory_bytes);

/// How many boxes of one rank a batch may ask for, so that nobody is sent too long lists, however many ask.
std::int64_t most_boxes(int ranks);

/// The batches of a writer.
class Intake {
 public:
  /// Whether it is time to ask for the next batch: fewer than two are on their way.
  bool wants_batch() const { return opened_ - received_ < kOnTheWay; }
  /// Whether there is memory for it: fewer than three are on their way or to be written.
  bool has_room() const { return opened_ - written_ < kInMemory; }
  void open() { ++opened_; }
  void receive() { ++received_; }
  void write() { ++written_; }
  std::int64_t opened() const { return opened_; }

 private:
  static constexpr std::int64_t kOnTheWay = 2, kInMemory = 3;
  std::int64_t opened_ = 0, received_ = 0, written_ = 0;
};

/// What a rank was asked for and has not sent yet.
class Outlet {
 public:
  /// What goes to one rank in a round: its next `boxes` boxes, all of one batch.
  struct Grant {
    int rank = 0;
    std::int64_t boxes = 0, bytes = 0;
  };

  /// `rank` asks for a batch of boxes of these bytes.
  void ask(int rank, std::span<const std::int64_t> box_bytes);
  /// The next round's, at most `limit_bytes` (but one box in any case), by rank. Ranks take turns by boxes; who begins
  /// differs from round to round. Cost: linear in ranks that wait, and boxes.
  std::vector<Grant> next_round(std::int64_t limit_bytes);
  bool is_empty() const { return waiting_.empty(); }

 private:
  struct Batch {
    std::vector<std::int64_t> box_bytes;
    std::size_t sent = 0;
  };
  std::map<int, std::deque<Batch>> waiting_;  ///< By rank; none is empty.
  int begins_ = 0;                            ///< The rank that begins the next round, or the first after it.
};

}  // namespace shard

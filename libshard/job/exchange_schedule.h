/// \file
/// The order in which pieces travel between ranks: who asks for how much, and who sends what in which round. Pure.
///
/// Each rank writes tiles of its own plan. What a tile needs of another rank is a box. Its writer takes tiles in order
/// into batches of bounded bytes and asks for the boxes of a batch; the ranks that hold them send them in the order in
/// which they were asked for, in rounds that all ranks make together, as much in each as their buffer takes and fairly
/// over those who ask. What a round holds follows from the plans alone: two runs of one job send the same in the same
/// rounds.
///
/// A rank knows its own plan and what it was asked for, nothing of what others do among themselves. One that sends to
/// many meets some of them in each round, in turn, so that no number here, of a rank, grows with ranks squared. That
/// nobody waits for ever: a batch that was received waits for its writer's disk alone; a
/// rank that has been asked can always send; and a rank that may not open a batch yet has two that are on their way, or
/// one to write.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

namespace shard {

inline constexpr std::int64_t kExchangeParts = 8;
/// Parts of the memory of a rank: one for tiles, up to three for batches, two for what is sent, one for threads that
/// read it; an eighth is left for lists. \throws Error kInvalidArgument  it is too little
std::int64_t exchange_unit(std::int64_t max_memory_bytes);

/// How many boxes of one rank a batch may ask for, so that nobody is sent too long lists, however many ask.
std::int64_t most_boxes(int ranks);

/// Which ranks speak to each other in a round: a sender and a writer that still have boxes for each other meet in every
/// round, or where a sender has many writers in one of several.
class Meetings {
 public:
  /// \param writers  how many ranks this one sends to.
  Meetings(int rank, int ranks, std::int64_t writers);
  /// In how many rounds this rank meets each of those that it sends to once; theirs is set_period's.
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

/// A box that a tile needs of another rank.
struct BoxNeed {
  int sender = 0;
  std::int64_t bytes = 0;
};

/// How far a batch goes: the tiles whose boxes take no more than a unit of memory, and not too many of one rank; one
/// tile in any case.
class BatchLimit {
 public:
  BatchLimit(std::int64_t unit_bytes, int ranks) : unit_bytes_(unit_bytes), most_boxes_(most_boxes(ranks)) {}
  /// Whether a tile that needs these still belongs to the batch; counts it then.
  bool takes(std::span<const BoxNeed> boxes);

 private:
  const std::int64_t unit_bytes_, most_boxes_;
  bool is_empty_ = true;
  std::int64_t bytes_ = 0;
  std::map<int, std::int64_t> boxes_;  ///< By sender.
};

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
  /// The next round's for those that it meets, at most `limit_bytes` (but one box in any case), by rank. Ranks take
  /// turns by boxes; who begins differs from round to round. Cost: linear in ranks that wait, and boxes.
  std::vector<Grant> next_round(std::int64_t limit_bytes, const std::function<bool(int rank)>& meets);
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

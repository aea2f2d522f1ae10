/// \file
/// Elements between the members of a group on one host, through memory that they share. Inside shardtorch only.
///
/// Each rank has a segment that it writes and the others read: two headers, and two halves of kHalfBytes. A half has a
/// slot for each different list of tensors that the rank sends: what all receivers get alike is written once. Elements
/// go through a slot packed, in rounds, which take the halves in turn over all moves of a group: while the others read
/// a round from one half, the next one is written to the other half.
///
/// Invariant: only what was read two rounds ago is overwritten, and no rank can be as far behind. Between rounds of a
/// move stands a barrier of the group, between moves the ranks' agreement on the next one; headers take turns by moves
/// in the same way. Both fail on all ranks where one fails, or is lost.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "libshard/ranks/group.h"
#include "shardtorch/sharded_tensor/shared_memory.h"

namespace shard {

/// Keeps one storage of at most kMostBytes. Threads: one at a time.
class SpareMemory {
 public:
  static constexpr std::size_t kMostBytes = 64 << 20;

  /// Keeps the tensor's storage, in place of the one kept so far, where nothing else uses it and LibTorch's allocator
  /// for the CPU made it.
  void offer(at::Tensor tensor);
  /// A tensor as `at::empty` makes it, in the kept storage where that has as many bytes. Nothing is kept afterwards.
  at::Tensor take(at::IntArrayRef sizes, const at::TensorOptions& options);

 private:
  c10::Storage kept_;
};

/// The segments of all members of a group. Memory of each rank, for as long as the group lives: as much as it ever sent
/// in two rounds, and a spare shard.
class HostLink {
 public:
  static constexpr std::size_t kHalfBytes = 16 << 20;

  /// A collective. Null on all ranks where one of them cannot read another's memory: on several hosts, in several
  /// containers, or where the system does not allow it. \throws Error kPeer
  static std::unique_ptr<HostLink> open(Group& group);

  SpareMemory& spare_memory() { return spare_memory_; }

 private:
  friend class HostMove;

  explicit HostLink(int ranks);
  static std::size_t header_bytes(int ranks);
  Bytes address() const;
  bool open_others(const std::vector<Bytes>& addresses, int own_rank);

  /// Of the present move.
  std::span<std::int64_t> header(std::size_t rank) const;
  /// Of a round of the present move, which count from 0.
  std::size_t half_begin(std::int64_t round) const;
  /// Takes memory for as many bytes of the own half.
  void reserve(std::size_t own_rank, std::int64_t round, std::size_t bytes);

  std::size_t header_bytes_;                             ///< Of one.
  std::vector<std::unique_ptr<SharedMemory>> segments_;  ///< By group rank.
  std::unique_ptr<SharedMemory> own_;                    ///< Until open_others.
  std::array<std::size_t, 2> reserved_{};                ///< Of each half.
  std::int64_t rounds_ = 0, moves_ = 0;                  ///< Before the present move: alike on all ranks.
  SpareMemory spare_memory_;
};

/// One move of elements. \pre one at a time on a link
class HostMove {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// Writes the first round. `to` and `from` are lists of tensors by group rank, of any strides, on any device; this
  /// rank's from[i] has the shapes of rank i's to[this rank]. Those of the rank itself are empty. May throw what a copy
  /// throws, or Error kResource; nothing has moved then. No autograd.
  HostMove(HostLink& link, int own_rank, std::vector<Tensors> to, std::vector<Tensors> from, at::ScalarType travel_as);

  /// A collective, which returns when this rank has what it takes. \pre all ranks have constructed theirs, and know it
  /// of one another
  /// \throws Error kPeer; what a copy throws, which breaks the group.
  void finish(Group& group);

 private:
  /// A list of tensors whose elements go through a slot, one after another.
  class Stream {
   public:
    explicit Stream(Tensors tensors);
    const Tensors& tensors() const { return tensors_; }
    std::int64_t elements() const { return elements_; }
    /// Calls `each` with the next views of the tensors and the same elements of `slot`, until either ends.
    template <class Each>
    void next(const at::Tensor& slot, const Each& each);

   private:
    Tensors tensors_;
    std::int64_t elements_ = 0;
    std::size_t index_ = 0;
    std::int64_t done_ = 0;  ///< Elements of tensors_[index_].
  };

  /// That of the same tensors, or a new one.
  std::int64_t slot_of(Stream stream);
  /// As large as they need be, or as there is room.
  void set_slots();
  /// \throws Error kPeer  a rank sends more or less than this one takes.
  void check_incoming() const;
  void write(std::int64_t round);
  void read(std::int64_t round);
  void run(Group& group);
  at::Tensor slot(std::size_t rank, std::size_t index, std::int64_t slot_bytes, std::int64_t round) const;

  HostLink& link_;
  std::size_t own_;
  at::ScalarType travel_as_;
  std::vector<Stream> outgoing_;              ///< By slot.
  std::vector<Stream> incoming_;              ///< By group rank.
  std::int64_t slot_bytes_ = 0, rounds_ = 0;  ///< Of what this rank sends.
};

}  // namespace shard

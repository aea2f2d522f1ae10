/// \file
/// Transfers elements between the members of a group on one host through shared memory. Inside shardtorch only.
///
/// Each rank has a segment that it writes and the others read. It contains two headers and two halves of kHalfBytes. A
/// half has a slot for each distinct list of tensors that the rank sends, so data for several receivers is written
/// once. Elements pass through a slot in packed form, in rounds. All rounds of all moves of a group use the two halves
/// in turn: while the others read one half, the next round is written to the other half.
///
/// Invariant: only data that was read two rounds ago is overwritten, and no rank can be that far behind. A barrier of
/// the group separates the rounds of a move, and the ranks' agreement on the next move separates moves. Headers
/// alternate between moves in the same way. Barrier and agreement fail on all ranks if one rank fails or dies.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "libshard/ranks/group.h"
#include "shardtorch/sharded_tensor/shared_memory.h"
#include "shardtorch/sharded_tensor/spare_memory.h"

namespace shard {

/// The segments of all members of a group. Each rank uses, until the group is destroyed, the memory of the largest two
/// rounds that it sent, and that of one released tensor (spare_memory.h).
class HostLink {
 public:
  static constexpr std::size_t kHalfBytes = 16 << 20;

  /// Opens the segments. A collective. Null on all ranks if one of them cannot read the memory of another one, because
  /// they are on several hosts or in several containers, or the system does not allow it. \throws Error kPeer
  static std::unique_ptr<HostLink> open(Group& group);

  SpareMemory& spare_memory() { return spare_memory_; }

 private:
  friend class HostMove;

  explicit HostLink(int ranks);
  static std::size_t header_bytes(int ranks);
  Bytes address() const;
  bool open_others(const std::vector<Bytes>& addresses, int own_rank);

  /// The header of the current move.
  std::span<std::int64_t> header(std::size_t rank) const;
  /// The half for a round of the current move. Rounds count from 0.
  std::size_t half_begin(std::int64_t round) const;
  /// Allocates this number of bytes in this rank's half.
  void reserve(std::size_t own_rank, std::int64_t round, std::size_t bytes);

  std::size_t header_bytes_;                             ///< The size of one header.
  std::vector<std::unique_ptr<SharedMemory>> segments_;  ///< By group rank.
  std::unique_ptr<SharedMemory> own_;                    ///< Until open_others.
  std::array<std::size_t, 2> reserved_{};                ///< The size of each half.
  std::int64_t rounds_ = 0, moves_ = 0;                  ///< Totals before the current move, the same on all ranks.
  SpareMemory spare_memory_;
};

/// One transfer of elements. \pre only one at a time per link
class HostMove {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// Writes the first round. `to` and `from` are lists of tensors by group rank, of any strides, on any device. This
  /// rank's from[i] has the shapes of rank i's to[this rank]. The lists for the rank itself are empty. May throw errors
  /// of copies, or Error kResource. No element has been transferred then. No autograd.
  HostMove(HostLink& link, int own_rank, std::vector<Tensors> to, std::vector<Tensors> from, at::ScalarType travel_as);

  /// A collective that returns when this rank has received its data. \pre all ranks have constructed their transfers,
  /// and know this
  /// \throws Error kPeer; errors of copies, which break the group.
  void finish(Group& group);

 private:
  /// A list of tensors whose elements pass through a slot in sequence.
  class Stream {
   public:
    explicit Stream(Tensors tensors);
    const Tensors& tensors() const { return tensors_; }
    std::int64_t elements() const { return elements_; }
    /// Calls `each` with consecutive views of the tensors and the corresponding elements of `slot`, until either ends.
    template <class Each>
    void next(const at::Tensor& slot, const Each& each);

   private:
    Tensors tensors_;
    std::int64_t elements_ = 0;
    std::size_t index_ = 0;
    std::int64_t done_ = 0;  ///< Elements of tensors_[index_] that are done.
  };

  /// The slot for these tensors, or a new one.
  std::int64_t slot_of(Stream stream);
  /// The needed size, or the available space.
  void set_slots();
  /// \throws Error kPeer  a rank sends a different number of elements than this one expects.
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
  std::int64_t slot_bytes_ = 0, rounds_ = 0;  ///< Size of the slots of this rank's outgoing data; number of rounds.
};

}  // namespace shard

/// \file
/// Group: what ranks need of one another. Bytes move; nothing knows a dtype.
///
/// Implementations are few and narrow: threads of one process (thread_group.h), MPI, c10d Gloo, c10d NCCL (plug-ins). All
/// pass one conformance suite (tests/support/group_conformance.h). What can be said in terms of these operations is a
/// free function below, so that it is written once.
///
/// Every operation is collective: all ranks call it, in the same order, from one thread each at a time. A rank that does
/// not come makes the others throw when their timeout is over; after that the group is broken for all.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shard {

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;  ///< "none", "threads", "mpi", "gloo", "nccl".

  /// \throws Error kPeer  here and below: a rank is gone, silent for longer than the timeout, or aborted.
  virtual void barrier() = 0;
  /// The root's `data` reaches all. \pre equal sizes on all ranks
  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  /// Rank i's `own` becomes part i of `all`. \pre equal sizes; all.size() == size() * own.size()
  virtual void all_gather(std::span<const std::byte> own, std::span<std::byte> all) = 0;
  /// to[i] goes to rank i and arrives there in its from[own rank]. Pieces without bytes are no messages.
  /// \pre size() spans each; both sides agree on each piece's bytes. Pieces may be larger than 2 GiB.
  virtual void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) = 0;

  /// For later operations, and for pending ones where the transport can (MPI). Threads: any.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  /// Breaks the group: pending and later operations of the others end in Error kPeer as soon as they can see it. Threads:
  /// any.
  virtual void abort() noexcept = 0;
};

/// The group of one rank: nothing moves.
Group& solo_group();

using Bytes = std::vector<std::byte>;

/// Pieces of any size. `gather` returns them by rank on the root and nothing elsewhere.
/// Cost: an all_gather of 8 bytes, then the bytes themselves.
std::vector<Bytes> gather(Group& group, std::span<const std::byte> own, int root);
std::vector<Bytes> all_gather(Group& group, std::span<const std::byte> own);
/// The root's bytes, on all ranks; `own` counts on the root only.
Bytes broadcast(Group& group, std::span<const std::byte> own, int root);

}  // namespace shard

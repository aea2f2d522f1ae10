/// \file
/// Group: communication between ranks. It moves bytes and knows no dtype.
///
/// There are four small implementations: threads of one process (thread_group.h), MPI, c10d Gloo, c10d NCCL (plug-ins).
/// All pass one conformance suite (tests/support/group_conformance.h). Everything that can be built from these
/// operations is a free function below, implemented once.
///
/// Every operation is collective: all ranks call it, in the same order, from one thread each at a time. If a rank does
/// not take part, the others throw when their timeout ends. After that the group is broken for all.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "libshard/core/bytes.h"

namespace shard {

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;  ///< One of "none", "threads", "mpi", "gloo", "nccl".

  /// \throws Error kPeer  here and below: a rank is gone, silent for longer than the timeout, or aborted.
  virtual void barrier() = 0;
  /// Sends the root's `data` to all ranks. \pre equal sizes on all ranks
  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  /// Collects every rank's `own` on all ranks: rank i's bytes become part i of `all`. \pre equal sizes; all.size() ==
  /// size() * own.size()
  virtual void all_gather(std::span<const std::byte> own, std::span<std::byte> all) = 0;
  /// Sends to[i] to rank i, which receives it in its from[own rank]. Empty pieces send nothing.
  /// \pre size() spans each; both sides agree on each piece's bytes. Pieces may be larger than 2 GiB.
  virtual void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) = 0;

  /// The rank that this rank's current operation is waiting for, and since when.
  struct Wait {
    int rank = 0;
    std::chrono::milliseconds lasts{0};
  };
  /// Nothing if no operation waits, or if the transport does not report it (NCCL; all_gather and barrier of all except
  /// threads). Threads: any.
  virtual std::optional<Wait> waits_for() const { return std::nullopt; }

  /// Applies to later operations, and to pending ones if the transport supports it (MPI). Threads: any.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  /// Breaks the group: pending and later operations of the others fail with Error kPeer as soon as they can notice it.
  /// Threads: any.
  virtual void abort() noexcept = 0;
};

/// The group of one rank, which sends nothing.
Group& solo_group();

/// Collects one value of each rank, by rank.
template <typename T>
std::vector<T> all_gather_values(Group& group, const T& own) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  group.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// Collects pieces of any size. `gather` returns them by rank on the root and nothing elsewhere.
/// Cost: an all_gather of 8 bytes, then the bytes themselves.
std::vector<Bytes> gather(Group& group, std::span<const std::byte> own, int root);
std::vector<Bytes> all_gather(Group& group, std::span<const std::byte> own);
/// Sends outgoing[i] to rank i. \returns the pieces that the other ranks sent to this one, by rank; its own is empty
/// Cost: an exchange of 8 bytes with each rank, then the pieces themselves.
std::vector<Bytes> all_to_all(Group& group, std::span<const Bytes> outgoing);
/// Returns the root's bytes on all ranks. `own` is ignored elsewhere.
Bytes broadcast(Group& group, std::span<const std::byte> own, int root);

}  // namespace shard

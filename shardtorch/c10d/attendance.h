/// \file
/// Finds out which ranks are missing, by keys in the store that all ranks share. Inside shardtorch only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace shard {

/// The key by which a rank reports to a `roll`.
std::string attendance_key(const std::string& roll, int rank);

/// "rank 1" or "ranks 1, 3": the ranks that have not reported to `roll`. A long list is truncated. Empty if all have.
/// Cost: a request per rank. \throws c10::Error  the store does not answer.
std::string absent_ranks(c10d::Store& store, const std::string& roll, int size);

/// Every rank whose operation failed calls this once per store. The ranks that do not call it within `patience` of the
/// first one are missing, because they died or are still elsewhere. \returns As absent_ranks, the same on all callers;
/// empty if the store does not answer within four times `patience`.
/// Cost: a few requests per rank, and one per rank by the first caller; takes `patience` if a rank is missing.
std::string missing_after_failure(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  std::chrono::milliseconds patience);

/// The progress of each rank, for groups whose ranks learn of a failure only by their own timeouts. A rank whose
/// operation failed can then name the ranks that have not come to it. All ranks run the same operations in the same
/// order. Threads: one at a time.
class Attendance {
 public:
  Attendance(c10::intrusive_ptr<c10d::Store> store, int rank, int size);
  /// Counts this rank's next operation. No request.
  void begin_next() { ++operation_; }
  /// Reports that this rank has come to its operation: one request, the first time. Errors of the store are ignored.
  void report() noexcept;
  /// Also reports. \returns  As absent_ranks: the ranks that do not report this operation or a later one within
  /// `patience`; empty if the store does not answer within four times `patience`.
  /// Cost: requests per rank until all have reported; takes `patience` if a rank is missing.
  std::string absent(std::chrono::milliseconds patience);

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, size_;
  std::int64_t operation_ = 0, reported_ = 0;
};

}  // namespace shard

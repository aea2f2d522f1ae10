/// \file
/// Finds out which ranks are missing, by keys in the store that all ranks share. Inside shardtorch only.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace shard {

/// The key by which a rank reports to a `roll`.
std::string attendance_key(const std::string& roll, int rank);

/// "rank 1" or "ranks 1, 3": the ranks that have not reported to `roll`; a long list is truncated. Empty if all have.
/// Cost: a request per rank. \throws c10::Error  the store does not answer.
std::string absent_ranks(c10d::Store& store, const std::string& roll, int size);

/// Every rank whose operation failed calls this once per store. The ranks that do not call it within `patience` of the
/// first one are missing: they died or are still elsewhere. \returns  As absent_ranks, the same on all callers; empty
/// if the store does not answer within four times `patience`.
/// Cost: a few requests per rank, and one per rank by the first caller; takes `patience` if a rank is missing.
std::string missing_after_failure(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  std::chrono::milliseconds patience);

}  // namespace shard

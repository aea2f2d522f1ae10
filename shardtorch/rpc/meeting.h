/// \file
/// Workers that connect through a store: bytes from every worker to every worker, without a process group. Inside
/// shardtorch/rpc only.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "libshard/ranks/group.h"

namespace shard {

/// All workers create one and call it in the same order. Threads: one at a time.
class Meeting {
 public:
  /// Opens a separate connection to the store. Keys begin with a number that is new for each Meeting of a worker, so a
  /// store may be used again.
  Meeting(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

  /// Part i is worker i's. Each call has its own keys; the last reader removes them.
  /// \throws c10::Error  "RPC: worker 2 did not come within 2000 ms", or the store's own error.
  std::vector<Bytes> all_gather(std::span<const std::byte> own);
  void barrier() { all_gather({}); }
  /// The last step: worker 0 waits for the others' last word, since the store often lives in its process.
  /// \throws c10::Error  as all_gather, in worker 0.
  void leave();

  /// The store under this meeting's keys, for other users. Its timeout is the meeting's.
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }

 private:
  std::vector<std::string> keys_of(const std::string& step) const;
  void wait_for(const std::vector<std::string>& keys) const;

  int rank_, size_;
  std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
  int calls_ = 0;
};

}  // namespace shard

/// \file Ranks that are threads of the test.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "shardtorch/sharded_tensor/process_group.h"

namespace shard::test {

/// Runs `body(rank)` on `size` threads, whose default groups no longer exist afterwards.
inline void on_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&body, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
      destroy_process_group();
    });
  }
}

}  // namespace shard::test

// An Output that is not on a disk: objects in memory. Each object has exactly the bytes that are written to it, in any
// order. All become visible together at the commit. There are no renames and no folders.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "libshard/io/output.h"

namespace shard::testing {

/// The shared part of the ranks' stores. Threads: safe.
struct MemoryObjects {
  struct Write {
    std::string path;
    std::int64_t offset = 0, bytes = 0;
    int rank = 0;
  };
  std::mutex mutex;
  std::map<std::string, std::vector<std::byte>> pending, visible;
  std::map<std::string, int> creators;  ///< Rank by path.
  std::vector<Write> writes;            ///< In their order.
};

/// One rank's store.
std::unique_ptr<OutputStore> memory_output(std::shared_ptr<MemoryObjects> objects, int rank);

}  // namespace shard::testing

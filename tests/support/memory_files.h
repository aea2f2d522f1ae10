/// \file
/// A disk in memory, with helpers to put files there and to read them.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/memory_disk.h"

namespace shard::testing {

using Files = std::map<std::string, std::vector<std::byte>>;  ///< Content by path.

/// Has the folder /d.
struct Disk {
  Disk() { disk->make_folder("/d"); }
  /// By their paths below `folder`.
  Files files_below(const std::string& folder) const {
    Files files;
    for (const std::string& path : state->paths()) {
      if (!path.starts_with(folder + "/") || disk->status(path).kind != FileKind::kFile) continue;
      files[path.substr(folder.size() + 1)] = state->content(path);
    }
    return files;
  }
  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> disk = make_memory_disk(state);
};

}  // namespace shard::testing

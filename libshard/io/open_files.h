/// \file OpenFiles: open files of a checkpoint by index. They are opened on first use. A few hundred are kept, so that
///   a checkpoint of thousands of files does not exceed the limit of descriptors.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "libshard/io/local_disk.h"

namespace shard {

/// Threads: safe. The opener is called under a lock.
class OpenFiles {
 public:
  using Opener = std::function<std::unique_ptr<RandomReader>(std::uint32_t index)>;
  explicit OpenFiles(Opener opener, std::size_t limit = 256) : opener_(std::move(opener)), limit_(limit) {}

  /// The file with this index. If too many are open, releases the one that was opened first (readers that still use it
  /// keep it open). \throws Error  from the opener.
  std::shared_ptr<const RandomReader> get(std::uint32_t index);

 private:
  Opener opener_;
  std::size_t limit_;
  std::mutex mutex_;
  std::map<std::uint32_t, std::shared_ptr<const RandomReader>> open_;
  std::deque<std::uint32_t> order_;
};

}  // namespace shard

/// \file
/// An open checkpoint, as the Python module uses it: its catalog, its objects, and boxes of its tensors in memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "formats/open/source.h"
#include "libshard/exec/read_boxes.h"
#include "libshard/io/stoppable_store.h"
#include "libshard/io/watched_store.h"
#include "libshard/stores/url_store.h"

namespace shard::python {

struct ReadLimits {
  int threads = 1;
  std::int64_t max_memory_bytes = 64 << 20;
};

/// The file of an Error is the user's path, or a path below it.
/// Threads: any, for all members except the constructor. A stop request makes an operation end with Error kInterrupted,
/// and also those that other threads run on the same Checkpoint at that time.
class Checkpoint {
 public:
  /// Opens the source, which reads only metadata. Of `urls`, the memory and the readers are those of `limits`.
  /// \throws Error  see open_source; kInterrupted  a stop was requested
  Checkpoint(const SourceRequest& request, const StoreRequest& urls, const ReadLimits& limits,
             const std::stop_token& stop);

  const Catalog& catalog() const { return source_.catalog(); }
  bool reads_urls() const { return reads_urls_; }
  /// The catalog with the values of all objects. The first call reads them. \throws Error  see Reader::load_objects
  const Catalog& with_objects(const std::stop_token& stop);
  /// Determines the offsets of a tensor's bytes. \throws Error  see Reader::locate
  void locate(std::span<const std::uint32_t> tensors, const std::stop_token& stop);
  /// Held while the offsets of bytes in the catalog are read.
  std::shared_lock<std::shared_mutex> hold() { return std::shared_lock(mutex_); }
  /// Fills the memory of every box; see read_boxes. Also locates the tensors.
  /// \throws Error kCorruption  also if a file changed since it was opened
  /// Cost: besides the reads, a status call for each file that is open, so one call for many boxes is best.
  std::int64_t read(std::span<const WantedBox> wanted, const std::stop_token& stop);

 private:
  class Operation;

  /// Runs `work`. Completes the path of its Error.
  template <class Work>
  auto named(const Work& work) const;

  const std::vector<std::string> paths_;
  const bool reads_urls_;
  std::atomic<int> stopped_ = 0;             ///< Operations that run, and for which a stop was requested.
  const std::unique_ptr<SourceStore> disk_;  ///< Files are opened later, also after the process changed its folder.
  const UrlStore urls_;
  const WatchedStore watched_;
  const StoppableStore store_;
  OpenedMaps maps_;
  const ReadLimits limits_;
  OpenSource source_;
  std::shared_mutex mutex_;       ///< Held alone while the catalog changes, and shared while it is read.
  std::vector<bool> is_located_;  ///< By tensor.
  bool has_objects_ = false;
};

}  // namespace shard::python

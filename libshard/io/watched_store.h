/// \file WatchedStore: a consistent view of a source during one run.
///
/// Each folder is listed once, and the status of each path is read once. Later calls return the first answer, so that
/// all parts of a run see the same files, and a store with a long round trip is asked once. Names that appear or vanish
/// during the run are not noticed.
///
/// Contents are watched: from its first opening on, a file must keep its identity, size and modification time. A change
/// in the middle of a file is not noticed if the modification time was reset.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "libshard/core/hash_table.h"
#include "libshard/io/source_store.h"

namespace shard {

/// Ownership: the inner store must outlive this. Threads: safe.
class WatchedStore final : public SourceStore {
 public:
  explicit WatchedStore(const SourceStore& inner) : inner_(inner) {}
  /// The status at the first call for that path. Failures are not remembered.
  FileStatus status(const std::string& path) const override;
  /// The names at the first call for that folder. Failures are not remembered. Cost: a copy of the names.
  std::vector<std::string> list(const std::string& folder) const override;
  /// \throws Error kCorruption  also if the file changed since it was opened before
  std::unique_ptr<RandomReader> open(const std::string& path) const override;
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override;

  /// Call it after everything was read. It reads all statuses again. \throws Error kCorruption  a file changed since it
  /// was opened
  /// Cost: a status call for each file that was opened.
  void expect_unchanged() const;

 private:
  struct Facts {
    FileIdentity identity;
    std::int64_t bytes = 0, modified_ns = 0;
  };
  std::unique_ptr<RandomReader> watched(const std::string& path, std::unique_ptr<RandomReader> file) const;
  static void compare(const std::string& path, const Facts& opened, const Facts& now);

  const SourceStore& inner_;
  mutable std::mutex mutex_;
  mutable HashMap<std::string, FileStatus> statuses_;             ///< By path.
  mutable HashMap<std::string, std::vector<std::string>> lists_;  ///< By folder.
  mutable std::map<std::string, Facts> opened_;                   ///< By path, from the first opening.
};

}  // namespace shard

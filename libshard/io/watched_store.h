/// \file
/// WatchedStore: a source as one run sees it.
///
/// Each folder is listed once, and the status of each path is taken once. Later calls return the first answer, so that
/// all parts of a run see the same files, and a store with a long round trip is asked once. Names that appear or vanish
/// during the run are not noticed.
///
/// Contents are watched: a file must stay what it was when it was first opened, the same one (its identity), of the
/// same size, modified at the same time. A change in the middle of a file by somebody who set its time back is not
/// seen.
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
  /// As of the first call for that path. Failures are not remembered.
  FileStatus status(const std::string& path) const override;
  /// As of the first call for that folder. Failures are not remembered. Cost: a copy of the names.
  std::vector<std::string> list(const std::string& folder) const override;
  /// \throws Error kCorruption  here also: the file is not what it was when it was opened before
  std::unique_ptr<RandomReader> open(const std::string& path) const override;
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override;

  /// To be called when all was read; takes the statuses anew. \throws Error kCorruption  a file is not what it was when
  /// it was opened
  /// Cost: a look at the status of each file that was opened.
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
  mutable std::map<std::string, Facts> opened_;                   ///< By path; as of the first time.
};

}  // namespace shard

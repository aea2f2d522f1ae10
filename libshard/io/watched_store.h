/// \file
/// WatchedStore: a store that knows whether what was opened is still the same.
///
/// A file is held against what it was when it was first opened: the same one (its identity), of the same size, modified
/// at the same time. A change in the middle of a file by somebody who set its time back is not seen.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard {

/// Ownership: the inner store must outlive this. Threads: safe.
class WatchedStore final : public SourceStore {
 public:
  explicit WatchedStore(const SourceStore& inner) : inner_(inner) {}
  FileStatus status(const std::string& path) const override { return inner_.status(path); }
  std::vector<std::string> list(const std::string& folder) const override { return inner_.list(folder); }
  /// \throws Error kCorruption  here also: the file is not what it was when it was opened before
  std::unique_ptr<RandomReader> open(const std::string& path) const override;
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override;

  /// To be called when all was read. \throws Error kCorruption  a file is not what it was when it was opened
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
  mutable std::map<std::string, Facts> opened_;  ///< By path; as of the first time.
};

}  // namespace shard

/// \file
/// What lies in the place of files that were never fetched: pointers of Git LFS and git-annex, links that lead nowhere.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/io/source_store.h"

namespace shard::app {

/// What lies at `path` instead of a file, of kind missing_file; nothing where a file or a folder is, or not even a
/// name.
std::optional<Error> placeholder_at(const SourceStore& store, const std::string& path);

/// Looks for them below the folders of a source. Threads: any. Cost: each folder is listed once.
class PlaceholderFiles {
 public:
  /// Ownership: `store` must outlive this.
  PlaceholderFiles(const SourceStore& store, const std::vector<std::string>& sources);
  /// In the sources' folders themselves.
  std::vector<Error> at_the_top() const;
  /// What lies in the place of a file, which is named by its path or from the folder of a checkpoint on.
  std::optional<Error> of_file(const std::string& file);

 private:
  bool is_listed(const std::string& path);

  const SourceStore& store_;
  std::vector<std::string> folders_;  ///< The sources', and that of a run's last iteration.
  std::mutex mutex_;
  std::map<std::string, std::set<std::string>> names_;  ///< By folder.
};

}  // namespace shard::app

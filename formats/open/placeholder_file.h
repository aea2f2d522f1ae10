/// \file
/// Detects placeholders of files that were never fetched: pointers of Git LFS and git-annex, broken links, and web
/// pages.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/io/source_store.h"

namespace shard {

/// Describes the placeholder at `path`, as an error of kind missing_file. Returns nothing if `path` is a file or a
/// folder, or does not exist.
std::optional<Error> placeholder_at(const SourceStore& store, const std::string& path);

/// Finds placeholders in the folder trees of a source. Threads: any. Cost: lists each folder once.
class PlaceholderFiles {
 public:
  /// Ownership: `store` must outlive this.
  PlaceholderFiles(const SourceStore& store, const std::vector<std::string>& sources);
  /// Placeholders directly in the sources' folders.
  std::vector<Error> at_the_top() const;
  /// The placeholder of a damaged file, given by its path or by its path relative to the folder of a checkpoint.
  std::optional<Error> of_file(const std::string& file);

 private:
  bool is_listed(const std::string& path);

  const SourceStore& store_;
  std::vector<std::string> sources_;
  std::vector<std::string> folders_;  ///< The sources' folders, and the folder of a run's last iteration.
  std::mutex mutex_;
  std::map<std::string, std::set<std::string>> names_;  ///< By folder.
};

}  // namespace shard

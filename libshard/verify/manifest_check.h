/// \file Compares a checkpoint's files with the manifest that was written with them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "libshard/core/findings.h"
#include "libshard/io/source_store.h"
#include "libshard/manifest/manifest.h"
#include "libshard/ranks/group.h"

namespace shard {

/// A manifest and the location of its files.
struct StatedFiles {
  Manifest manifest;
  const SourceStore* store = nullptr;
  std::string folder;  ///< The folder that contains the files. Empty: the manifest describes the one file `file`.
  std::string file;
  bool is_part = false;  ///< `manifest` describes only some of the files in the folder.

  std::unique_ptr<RandomReader> open(const ManifestFile& stated) const {
    return folder.empty() ? store->open(file) : store->open_below(folder, stated.path);
  }
};

/// Reads a manifest for the checkpoint at `paths`. If `paths` are several files, or one of many files in the manifest,
/// only the entries for those files are kept.
/// \throws Error kNotFound; kCorruption  see parse_manifest, or the manifest has no entry for one of `paths`
StatedFiles read_manifest(const SourceStore& store, const std::string& manifest, const std::vector<std::string>& paths);

/// Compares the sizes of files, and the hashes of blocks that the data pass reads. Threads: any may call `compare`.
class ManifestCheck {
 public:
  /// Ownership: both must outlive this.
  ManifestCheck(const StatedFiles& stated, Findings& findings) : stated_(stated), findings_(findings) {}
  /// Reports files that are missing or have a different size. Warns about files in the folder that the manifest does
  /// not list. \returns which files can be read, by index into Manifest::files.
  std::vector<bool> check_files();
  /// Compares the hash of a block that was read.
  void compare(std::size_t file, std::int64_t block, const std::string& hash);
  std::int64_t compared() const { return compared_; }
  /// Sends the results to rank 0. Collective. \throws Error kPeer
  void gather(Group& group);
  /// Reports the blocks that differ, adjacent ones together.
  void report() const;

 private:
  bool check_file(const ManifestFile& file);
  void warn_of_extra_files() const;
  void report_blocks(const ManifestFile& file, std::int64_t first, std::int64_t last) const;

  const StatedFiles& stated_;
  Findings& findings_;
  std::mutex mutex_;
  std::map<std::size_t, std::set<std::int64_t>> differing_;
  std::int64_t compared_ = 0;
};

}  // namespace shard

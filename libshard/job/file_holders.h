/// \file FileHolders: which ranks hold each file of a source, if each rank sees only its own files. Pure except for
///   find_holders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/job/group_store.h"

namespace shard {

/// The ranks that hold each file of a catalog.
class FileHolders {
 public:
  /// \param ranks  the ranks of each file, in rising order. A file that no rank needs may have none.
  explicit FileHolders(std::vector<std::vector<int>> ranks) : ranks_(std::move(ranks)) {}

  const std::vector<int>& of(std::uint32_t file) const { return ranks_[file]; }
  bool holds(int rank, std::uint32_t file) const;
  /// The rank that reads the file for all others. Ranks that hold the same files share them.
  int reader(std::uint32_t file) const;
  std::vector<int> readers() const;
  /// The rank that reads a storage of the file for rank `to`: `to` itself if it holds the file. Otherwise, the holders
  /// share the storages, so that one of them reads all of a storage.
  int sender(std::uint32_t file, std::uint32_t storage, int to) const;

 private:
  std::vector<std::vector<int>> ranks_;
};

/// The holders of the files that contain storages. \pre `reader` was opened from `store`
FileHolders find_holders(const Reader& reader, const GroupStore& store);

/// Checks that the ranks and world size recorded in per-rank files match the group.
/// \throws Error kCorruption  a file does not match; the message names it, the recorded rank, and the expected one.
void check_file_ranks(const Catalog& catalog, const FileHolders& holders, int ranks);

/// Some formats record ranks in files that any number of ranks may read. If the job has as many ranks as wrote the
/// files, a file on a different rank causes a warning, because its content must be sent between ranks. \returns the
/// warning, or an empty string if all files are on their ranks.
std::string warning_of_file_ranks(const Catalog& catalog, const FileHolders& holders, int ranks);

}  // namespace shard

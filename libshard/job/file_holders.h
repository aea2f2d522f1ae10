/// \file
/// For sources where each rank sees only its own files: which ranks hold each file. Pure except for find_holders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/job/group_store.h"

namespace shard {

/// By file of a catalog.
class FileHolders {
 public:
  /// The ranks of each file, rising; a file that nobody reads may have none.
  explicit FileHolders(std::vector<std::vector<int>> ranks) : ranks_(std::move(ranks)) {}

  const std::vector<int>& of(std::uint32_t file) const { return ranks_[file]; }
  bool holds(int rank, std::uint32_t file) const;
  /// The rank that reads the file for all. Holders of the same files share them.
  int reader(std::uint32_t file) const;
  std::vector<int> readers() const;
  /// The rank that reads a storage of the file for rank `to`: itself, if it holds the file; holders share what they
  /// send by storages, so that one of them reads all of a storage.
  int sender(std::uint32_t file, std::uint32_t storage, int to) const;

 private:
  std::vector<std::vector<int>> ranks_;
};

/// Those of the files that hold storages. \pre `reader` was opened from `store`
FileHolders find_holders(const Reader& reader, const GroupStore& store);

/// Checks that the ranks and world size recorded in per-rank files match the group.
/// \throws Error kCorruption  naming the file, what it states, and what was expected.
void check_file_ranks(const Catalog& catalog, const FileHolders& holders, int ranks);

/// Files of formats that any number of ranks may read name ranks too. Where as many ranks wrote them as this job has,
/// a file on a different rank causes a warning, because its content must be sent between ranks. \returns a warning;
/// empty where all lie with their ranks.
std::string warning_of_file_ranks(const Catalog& catalog, const FileHolders& holders, int ranks);

}  // namespace shard

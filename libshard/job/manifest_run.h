/// \file
/// Makes the manifest of one run of a copy job: hashes what is written, reads back what was not written in order,
/// brings together what the ranks know. Inside libshard/job only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "libshard/io/output.h"
#include "libshard/job/copy_job.h"
#include "libshard/manifest/block_hashes.h"
#include "libshard/ranks/group.h"

namespace shard {

/// Which rank each file of the target lies with; empty: all lie at one place.
using FilePlaces = std::vector<int>;

/// The manifest of a placed target's files, as a file of the output: its size is known before its hashes are.
File manifest_file(const ManifestRequest& request, bool is_folder, const Catalog& target, const FilePlaces& places);

/// Ownership: request and target must outlive this.
class ManifestRun {
 public:
  ManifestRun(const ManifestRequest& request, const Catalog& target, FilePlaces places)
      : request_(request), target_(target), places_(std::move(places)), hashes_(target.files.size()) {}

  /// A writer that also hashes. Ownership: this keeps it; `to` must outlive its use.
  FileWriter& hashing(std::uint32_t file, FileWriter& to);
  /// Rank 0 learns what all ranks hashed and what is missing, which all ranks are told. Collective.
  void share(Group& group);
  /// Reads back the blocks that are missing in files of which `owners` says that they are this rank's.
  /// \throws Error kResource  from reading back what was written
  void read_back(std::span<FileWriter* const> files, const std::vector<int>& owners, int rank, int threads,
                 const std::stop_token& stop);
  /// Rank 0 learns what was read back. \returns the document, on all ranks. Collective.
  std::string finish(Group& group);

 private:
  using Block = std::pair<std::uint32_t, std::int64_t>;  ///< A file and a block of it.
  std::uint32_t file_count() const { return static_cast<std::uint32_t>(target_.files.size()); }
  BlockHashes& hashes_of(std::uint32_t file);
  Bytes known_blocks() const;
  void take_known(const Bytes& message);

  const ManifestRequest& request_;
  const Catalog& target_;
  const FilePlaces places_;
  std::vector<std::unique_ptr<BlockHashes>> hashes_;  ///< By file; null where this rank knows nothing of it.
  std::vector<std::unique_ptr<HashingWriter>> writers_;
  std::vector<Block> missing_;
  std::vector<std::pair<Block, std::string>> read_;  ///< What this rank read back.
};

}  // namespace shard

/// \file ManifestRun: builds the manifest of one run of a copy job. It hashes data as it is written, reads back blocks
///   that were not written in order, and collects the hashes of all ranks. Inside libshard/job only.
#pragma once

#include <cstdint>
#include <functional>
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

/// The rank whose place contains each file of the target. Empty: all files are in one place.
using FilePlaces = std::vector<int>;

/// The manifest of a placed target's files, as a file of the output. Its size is known before its hashes are.
File manifest_file(const ManifestRequest& request, bool is_folder, const Catalog& target, const FilePlaces& places);

/// Ownership: request and target must outlive this.
class ManifestRun {
 public:
  ManifestRun(const ManifestRequest& request, const Catalog& target, FilePlaces places)
      : request_(request), target_(target), places_(std::move(places)), hashes_(target.files.size()) {}

  /// A writer that also hashes. Ownership: this object owns it. `to` must outlive its use.
  FileWriter& hashing(std::uint32_t file, FileWriter& to);
  /// An OutputFile::on_block that hashes. This object must outlive its use.
  std::function<void(std::int64_t, std::span<const std::byte>)> block_sink(std::uint32_t file);
  /// Rank 0 collects the hashes of all ranks, and sends the list of missing blocks to all. Collective.
  void share(Group& group);
  /// Reads back the missing blocks in the files that this rank owns according to `owners`.
  /// \throws Error kResource  from reading back the written data
  void read_back(std::span<FileWriter* const> files, const std::vector<int>& owners, int rank, int threads,
                 const std::stop_token& stop);
  /// Rank 0 collects the hashes of blocks that were read back. \returns the document, on all ranks. Collective.
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
  std::vector<std::unique_ptr<BlockHashes>> hashes_;  ///< By file. Null if this rank hashed nothing of it.
  std::vector<std::unique_ptr<HashingWriter>> writers_;
  std::vector<Block> missing_;
  std::vector<std::pair<Block, std::string>> read_;  ///< The hashes of blocks that this rank read back.
};

}  // namespace shard

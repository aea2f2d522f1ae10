/// \file Verification: runs every check that is possible on an open checkpoint and its manifest. Every finding is
///   reported, and none stops the verification.
///
/// prepare() checks metadata: the positions of all tensors, objects, containers. read() reads every byte of the files
/// once, and replicas once more. finish() collects the findings of all ranks. Each rank of a group has one
/// Verification, over the same source. The first two functions are the work of a collective step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>

#include "libshard/checkpoint/reader.h"
#include "libshard/exec/execute.h"
#include "libshard/ranks/group.h"
#include "libshard/verify/manifest_check.h"
#include "libshard/verify/verify_findings.h"

namespace shard {

/// SHA-256s of the whole files in a folder, from Megatron-Core's integrity.json.
struct WholeHashes {
  std::map<std::string, std::string> files;  ///< By path relative to the folder.
  const SourceStore* store = nullptr;
  std::string folder;
};

struct VerifyJob {
  Reader* reader = nullptr;             ///< Null: only the manifest's files can be read.
  const StatedFiles* stated = nullptr;  ///< Null: there is no manifest.
  const WholeHashes* hashes = nullptr;  ///< Null: there are none.
  /// Whether replicas are each rank's own copy, which the format does not keep equal. Differences are then warnings.
  bool ranks_may_differ = false;
  int threads = 1;
  std::int64_t max_memory_bytes = 64 << 20;
};

/// Counts of the completed checks.
struct VerifyCounts {
  std::int64_t files = 0, bytes = 0;
  std::int64_t containers = 0;  ///< Files in which records were found.
  std::int64_t tensors = 0, chunks = 0;
  std::int64_t crc32s = 0;           ///< CRC-32s that were compared.
  std::int64_t manifest_blocks = 0;  ///< Blocks that were compared with the manifest.
};

class Verification {
 public:
  /// \param found  has the findings from opening the reader, on every rank. Ownership: all arguments must outlive this.
  Verification(const VerifyJob& job, Group& group, VerifyFindings& found, Progress& progress);
  ~Verification();
  /// \throws Error  (here and below) only for failures that are not the source's fault
  void prepare(const std::stop_token& stop);
  /// The files that are read, by the names in the catalog, the manifest or the hashes. \pre prepare() has finished
  std::set<std::string> file_names() const;
  std::int64_t total_bytes() const;  ///< The number of bytes that all ranks together read. \pre prepare() has finished
  void read(const std::stop_token& stop);
  /// Collects findings and counts. Collective. Rank 0's `found` then contains all findings. \throws Error kPeer
  void finish();
  const VerifyCounts& counts() const;            ///< \pre finish() has finished. Rank 0's counts cover all ranks.
  const std::set<std::string>& globals() const;  ///< The "module.name" of all globals in pickles.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shard

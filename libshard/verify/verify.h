/// \file
/// Verification: every check that can be made of an open checkpoint, and of what a manifest says of its files. Every
/// finding is reported; none ends it.
///
/// prepare() checks metadata: places of all tensors, objects, containers. read() reads every byte of the files once,
/// replicas once more where there are any. finish() brings together what the ranks found. Each rank of a group makes
/// one, over the same source; the first two are work for a collective step.
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

/// SHA-256s of whole files of a folder, as Megatron-core's integrity.json has them.
struct WholeHashes {
  std::map<std::string, std::string> files;  ///< By path below the folder.
  const SourceStore* store = nullptr;
  std::string folder;
};

struct VerifyJob {
  Reader* reader = nullptr;             ///< Null: nothing but the manifest's files can be read.
  const StatedFiles* stated = nullptr;  ///< Null: there is no manifest.
  const WholeHashes* hashes = nullptr;  ///< Null: there are none.
  /// Replicas are each rank's own copy, which the format does not keep equal: where they differ is a warning.
  bool ranks_may_differ = false;
  int threads = 1;
  std::int64_t max_memory_bytes = 64 << 20;
};

/// Counts of what was checked.
struct VerifyCounts {
  std::int64_t files = 0, bytes = 0;
  std::int64_t containers = 0;  ///< Files in which records were found.
  std::int64_t tensors = 0, chunks = 0;
  std::int64_t crc32s = 0;           ///< CRC-32s that were compared.
  std::int64_t manifest_blocks = 0;  ///< Blocks that were compared with the manifest.
};

class Verification {
 public:
  /// `found` has what opening the reader reported, on every rank. Ownership: all must outlive this.
  Verification(const VerifyJob& job, Group& group, VerifyFindings& found, Progress& progress);
  ~Verification();
  /// \throws Error  (here and below) only for failures that are not the source's fault
  void prepare(const std::stop_token& stop);
  /// The files that are read, as the catalog, the manifest or the hashes name them. \pre prepared
  std::set<std::string> file_names() const;
  std::int64_t total_bytes() const;  ///< What all ranks together read. \pre prepared
  void read(const std::stop_token& stop);
  /// Collective. Rank 0's `found` then has all findings. \throws Error kPeer
  void finish();
  const VerifyCounts& counts() const;            ///< \pre finished; rank 0's are of all ranks.
  const std::set<std::string>& globals() const;  ///< "module.name" of all globals in pickles.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shard

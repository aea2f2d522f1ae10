/// \file
/// One pass over all bytes of a checkpoint's files: CRC-32s, the manifest's blocks, and what is compressed.
/// Inside libshard/verify only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/exec/execute.h"
#include "libshard/io/open_files.h"
#include "libshard/verify/manifest_check.h"
#include "libshard/verify/replicas.h"
#include "libshard/verify/summed_runs.h"

namespace shard {

/// A file that is read from its begin to its end.
struct PassFile {
  std::string path;  ///< For messages.
  std::int64_t bytes = 0;
  std::uint32_t file = kNoIndex;        ///< The catalog's; kNoIndex where only the manifest knows it.
  std::optional<std::size_t> stated{};  ///< Index into Manifest::files.
  std::string sha256{};                 ///< What the whole file's should be; empty: nobody says.
};

/// Bytes that come out of a view, which are read as a whole.
struct DecodedRun {
  std::uint32_t file = 0;
  SummedBytes bytes;
};

/// What a pass reads and where it tells of it. Pointers may be null where there is nothing of the kind.
struct PassParts {
  const Reader* reader = nullptr;
  const StatedFiles* stated = nullptr;
  std::function<std::unique_ptr<RandomReader>(const PassFile& file)> open_other;  ///< Files that no catalog has.
  std::vector<PassFile> files;
  std::vector<DecodedRun> decoded;
  std::vector<ReplicaPair> pairs;
  SummedRuns* sums = nullptr;
  ManifestCheck* manifest = nullptr;
  ReplicaCompare* replicas = nullptr;
  Findings* findings = nullptr;
};

/// The work is cut into units: blocks of files, views, pairs of replicas.
/// Threads: run() makes its own. Memory: 256 KiB a thread, decoders, and what ReplicaCompare takes.
class DataPass {
 public:
  /// Ownership: `parts` and what it points to must outlive this.
  DataPass(const PassParts& parts, Progress& progress);
  std::int64_t total_bytes() const { return total_bytes_; }
  /// Does the share of one rank of `ranks`. What cannot be read is reported.
  void run(int rank, int ranks, int threads, const std::stop_token& stop);

 private:
  struct Unit {
    enum class Kind : std::uint8_t { kBlock, kDecoded, kPair } kind;
    std::uint32_t index;  ///< Into files, decoded or pairs.
    std::int64_t begin = 0, end = 0;
    std::int64_t bytes() const { return end - begin; }
  };
  class Worker;

  std::shared_ptr<const RandomReader> open(std::uint32_t file) const;
  /// Reports what keeps a unit from being read, once for a file that was cut short. \throws Error  of another code
  void take(const Unit& unit, Error& error);
  bool is_given_up(const Unit& unit);

  const PassParts& parts_;
  Progress& progress_;
  std::vector<Unit> units_;
  std::int64_t total_bytes_ = 0;
  mutable OpenFiles other_files_;
  std::mutex mutex_;
  std::set<std::uint32_t> given_up_;  ///< Files that end too early.
};

}  // namespace shard

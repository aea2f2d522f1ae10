/// \file
/// One pass over all bytes of a checkpoint's files: CRC-32s, the manifest's blocks, and what is compressed.
/// Inside libshard/verify only.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/checkpoint/container_report.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/core/crc_runs.h"
#include "libshard/core/findings.h"
#include "libshard/exec/execute.h"
#include "libshard/io/open_files.h"
#include "libshard/ranks/group.h"
#include "libshard/verify/manifest_check.h"

namespace shard {

/// A run in one file, with what messages say of it.
struct StoredCrc {
  std::int64_t offset = 0, bytes = 0;
  std::uint32_t crc32 = 0;
  std::string name;

  std::int64_t end() const { return offset + bytes; }
};

/// Threads: `set` for different files at once; then `add` and `compare` by any.
class StoredCrcs {
 public:
  /// Ownership: both must outlive this.
  StoredCrcs(const Catalog& catalog, Findings& findings) : catalog_(catalog), findings_(findings) {
    by_file_.resize(catalog.files.size());
  }
  /// The runs of one file, in any order.
  void set(std::uint32_t file, std::vector<StoredCrc> runs);
  std::span<const StoredCrc> of(std::uint32_t file) const { return by_file_[file]; }

  /// The CRC-32 of bytes [offset, offset + bytes) of a run. Pieces come in any order, each once. Reports a run that is
  /// complete and differs.
  void add(std::uint32_t file, std::size_t run, std::int64_t offset, std::int64_t bytes, std::uint32_t crc);
  /// Reports `run` of the file unless `found` is what its container states.
  void compare(std::uint32_t file, const StoredCrc& run, std::uint32_t found);
  std::int64_t compared() const { return compared_; }
  void count(std::int64_t more) { compared_ += more; }

  /// Sends what is known of incomplete runs to rank 0, which compares them. Collective. \throws Error kPeer
  void gather(Group& group);

 private:
  std::string tensor_in(std::uint32_t file, const StoredCrc& run) const;

  const Catalog& catalog_;
  Findings& findings_;
  std::vector<std::vector<StoredCrc>> by_file_;  ///< By offset.
  std::mutex mutex_;
  std::map<std::pair<std::uint32_t, std::size_t>, CrcRuns> begun_;
  std::atomic<std::int64_t> compared_{0};
};

/// A chunk and the first of its box, which it should equal.
struct ReplicaPair {
  std::uint32_t tensor = 0, first = 0, other = 0;  ///< The chunks: indices into Catalog::chunks.
  std::int64_t bytes = 0;
};

/// All pairs of located chunks that do not lie at one place. Aliases and damaged tensors are left out.
std::vector<ReplicaPair> replica_pairs(const Catalog& catalog);

/// Compares pairs. Threads: any. Memory: the pools', and 2 MiB a call.
class ReplicaCompare {
 public:
  /// Ownership: all must outlive this.
  ReplicaCompare(const Reader& reader, std::span<const ReplicaPair> pairs, std::int64_t max_memory_bytes,
                 Progress& progress, Findings& findings, bool may_differ = false);
  /// Reports (replica_mismatch) pair `index` if its elements differ; warns if they may. \throws Error  they cannot be
  /// read
  void compare(std::size_t index, const std::stop_token& stop);

 private:
  void report(const ReplicaPair& pair, std::int64_t element) const;

  const Reader& reader_;
  std::span<const ReplicaPair> pairs_;
  Catalog catalog_;                     ///< Each chunk of a pair is a tensor of its own: pair i's are 2i and 2i + 1.
  BufferPool first_pool_, other_pool_;  ///< A thread that reads two tensors at once needs two.
  Progress& progress_;
  Findings& findings_;
  const bool may_differ_;
};

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
  CrcRange bytes;
};

/// What a pass reads and where it tells of it. Pointers may be null where there is nothing of the kind.
struct PassParts {
  const Reader* reader = nullptr;
  const StatedFiles* stated = nullptr;
  std::function<std::unique_ptr<RandomReader>(const PassFile& file)> open_other;  ///< Files that no catalog has.
  std::vector<PassFile> files;
  std::vector<DecodedRun> decoded;
  std::vector<ReplicaPair> pairs;
  StoredCrcs* sums = nullptr;
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

/// \file Reads all bytes of a checkpoint's files once: checks CRC-32s, the manifest's blocks, and compressed data.
///   Inside libshard/verify only.
#pragma once

#include <atomic>
#include <compare>
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

/// A run of one file that has a stored CRC-32, and its description for messages.
struct StoredCrc {
  std::int64_t offset = 0, bytes = 0;
  std::uint32_t crc32 = 0;
  std::string name;

  std::int64_t end() const { return offset + bytes; }
};

/// Compares stored CRC-32s. Threads: `set` may run for different files at once. Any thread may then call `add` and
/// `compare`.
class StoredCrcs {
 public:
  /// Ownership: both must outlive this.
  StoredCrcs(const Catalog& catalog, Findings& findings) : catalog_(catalog), findings_(findings) {
    by_file_.resize(catalog.files.size());
    names_.resize(catalog.files.size());
  }
  /// The runs of one file, in any order. Findings have its `name`.
  void set(std::uint32_t file, std::string name, std::vector<StoredCrc> runs);
  std::span<const StoredCrc> of(std::uint32_t file) const { return by_file_[file]; }

  /// Adds the CRC-32 of bytes [offset, offset + bytes) of a run. Pieces come in any order, each once. Reports the run
  /// if it is complete and its CRC-32 differs.
  void add(std::uint32_t file, std::size_t run, std::int64_t offset, std::int64_t bytes, std::uint32_t crc);
  /// Reports `run` of the file unless `found` is the CRC-32 that its container states.
  void compare(std::uint32_t file, const StoredCrc& run, std::uint32_t found);
  std::int64_t compared() const { return compared_; }
  void count(std::int64_t more) { compared_ += more; }

  /// Sends sums of incomplete runs to rank 0, which combines and compares them. Collective. \throws Error kPeer
  void gather(Group& group);

 private:
  /// The begin of a tensor's storage.
  struct Place {
    std::uint32_t file;
    std::int64_t offset;
    std::uint32_t tensor;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  std::string tensor_in(std::uint32_t file, const StoredCrc& run);

  const Catalog& catalog_;
  Findings& findings_;
  std::vector<std::vector<StoredCrc>> by_file_;  ///< Per file, sorted by offset.
  std::vector<std::string> names_;
  std::mutex mutex_;
  std::map<std::pair<std::uint32_t, std::size_t>, CrcRuns> begun_;
  std::atomic<std::int64_t> compared_{0};
  std::once_flag has_places_;
  std::vector<Place> places_;  ///< Sorted. Found for the first difference.
};

/// A chunk and the first chunk with the same box, which should have the same elements.
struct ReplicaPair {
  std::uint32_t tensor = 0, first = 0, other = 0;  ///< The tensor, and the two chunks as indices into Catalog::chunks.
  std::int64_t bytes = 0;
};

/// All pairs of located replicas at different positions. Skips aliases and damaged tensors.
std::vector<ReplicaPair> replica_pairs(const Catalog& catalog);

/// Compares pairs of replicas. Threads: any. Memory: the pools, and 2 MiB per call.
class ReplicaCompare {
 public:
  /// Ownership: all must outlive this.
  ReplicaCompare(const Reader& reader, std::span<const ReplicaPair> pairs, std::int64_t max_memory_bytes,
                 Progress& progress, Findings& findings, bool may_differ = false);
  /// Reports pair `index` (replica_mismatch) if its elements differ, or warns if they may differ. \throws Error  a
  /// chunk cannot be read
  void compare(std::size_t index, const std::stop_token& stop);

 private:
  void report(const ReplicaPair& pair, std::int64_t element) const;

  const Reader& reader_;
  std::span<const ReplicaPair> pairs_;
  Catalog catalog_;                     ///< Each chunk of pair i is a tensor: 2i and 2i + 1.
  BufferPool first_pool_, other_pool_;  ///< A thread that reads two tensors at once needs two.
  Progress& progress_;
  Findings& findings_;
  const bool may_differ_;
};

/// A file that the pass reads from begin to end.
struct PassFile {
  std::string path;  ///< The path for messages.
  std::int64_t bytes = 0;
  std::uint32_t file = kNoIndex;        ///< The index in the catalog; kNoIndex if only the manifest names the file.
  std::optional<std::size_t> stated{};  ///< The index in Manifest::files.
  std::string sha256{};                 ///< The expected hash of the whole file. Empty if there is none.
};

/// A run of bytes that a view decodes, read as a whole.
struct DecodedRun {
  std::uint32_t file = 0;
  CrcRange bytes;
};

/// The inputs of a pass, and the receivers of its results. Pointers may be null if there is nothing of the kind.
struct PassParts {
  const Reader* reader = nullptr;
  const StatedFiles* stated = nullptr;
  std::function<std::unique_ptr<RandomReader>(const PassFile& file)> open_other;  ///< Opens files outside the catalog.
  std::vector<PassFile> files;
  std::vector<DecodedRun> decoded;
  std::vector<ReplicaPair> pairs;
  StoredCrcs* sums = nullptr;
  ManifestCheck* manifest = nullptr;
  ReplicaCompare* replicas = nullptr;
  Findings* findings = nullptr;
};

/// Reads everything once. The work is divided into units: blocks of files, views, and pairs of replicas. Threads: run()
/// starts its own. Memory: 256 KiB per thread (1 MiB on a disk with long round trips), decoders, and the memory of
/// ReplicaCompare.
class DataPass {
 public:
  /// Ownership: `parts` and the objects it points to must outlive this.
  DataPass(const PassParts& parts, Progress& progress);
  std::int64_t total_bytes() const { return total_bytes_; }
  /// Does the share of one rank of `ranks`. Reports everything that cannot be read.
  void run(int rank, int ranks, int threads, const std::stop_token& stop);

 private:
  struct Unit {
    enum class Kind : std::uint8_t { kBlock, kDecoded, kPair } kind;
    std::uint32_t index;  ///< Index into files, decoded or pairs.
    std::int64_t begin = 0, end = 0;
    std::int64_t bytes() const { return end - begin; }
  };
  class Worker;

  std::shared_ptr<const RandomReader> open(std::uint32_t file) const;
  /// Reports why a unit cannot be read, only once for a truncated file. \throws Error  one that is not about the source
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

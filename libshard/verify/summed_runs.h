/// \file
/// Runs of a checkpoint's files whose CRC-32 their containers state, compared as the files are read in any order.
/// Inside libshard/verify only.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/checkpoint/container_report.h"
#include "libshard/core/crc_runs.h"
#include "libshard/core/findings.h"
#include "libshard/ranks/group.h"

namespace shard {

/// A run in one file, with what messages say of it.
struct SummedRun {
  std::int64_t offset = 0, bytes = 0;
  std::uint32_t crc32 = 0;
  std::string name;

  std::int64_t end() const { return offset + bytes; }
};

/// Threads: `set` for different files at once; then `add` and `compare` by any.
class SummedRuns {
 public:
  /// Ownership: both must outlive this.
  SummedRuns(const Catalog& catalog, Findings& findings) : catalog_(catalog), findings_(findings) {
    by_file_.resize(catalog.files.size());
  }
  /// The runs of one file, in any order.
  void set(std::uint32_t file, std::vector<SummedRun> runs);
  std::span<const SummedRun> of(std::uint32_t file) const { return by_file_[file]; }

  /// The CRC-32 of bytes [offset, offset + bytes) of a run. Pieces come in any order, each once. Reports a run that is
  /// complete and differs.
  void add(std::uint32_t file, std::size_t run, std::int64_t offset, std::int64_t bytes, std::uint32_t crc);
  /// Reports `run` of the file unless `found` is what its container states.
  void compare(std::uint32_t file, const SummedRun& run, std::uint32_t found);
  std::int64_t compared() const { return compared_; }
  void count(std::int64_t more) { compared_ += more; }

  /// Sends what is known of incomplete runs to rank 0, which compares them. Collective. \throws Error kPeer
  void gather(Group& group);

 private:
  std::string tensor_in(std::uint32_t file, const SummedRun& run) const;

  const Catalog& catalog_;
  Findings& findings_;
  std::vector<std::vector<SummedRun>> by_file_;  ///< By offset.
  std::mutex mutex_;
  std::map<std::pair<std::uint32_t, std::size_t>, CrcRuns> begun_;
  std::atomic<std::int64_t> compared_{0};
};

}  // namespace shard

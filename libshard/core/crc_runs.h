/// \file CRC-32s of runs of one sequence of bytes, which are added in any order.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace shard {

/// Joins adjacent runs at once, so that memory stays small. Threads: one at a time.
class CrcRuns {
 public:
  struct Run {
    std::int64_t bytes = 0;
    std::uint32_t crc = 0;
  };
  /// \returns false, and adds nothing, if the run overlaps a known one. \pre bytes > 0
  bool add(std::int64_t offset, std::int64_t bytes, std::uint32_t crc);
  struct Range {
    std::int64_t begin = 0, end = 0;
  };
  /// The parts of [begin, end) that no run covers, in order.
  std::vector<Range> missing(std::int64_t begin, std::int64_t end) const;
  /// Sorted by offset. No two runs are adjacent.
  const std::map<std::int64_t, Run>& runs() const { return runs_; }
  /// Whether bytes [0, bytes) are one run.
  bool covers(std::int64_t bytes) const { return runs_.size() == 1 && runs_.begin()->second.bytes == bytes; }

 private:
  std::map<std::int64_t, Run> runs_;
};

}  // namespace shard

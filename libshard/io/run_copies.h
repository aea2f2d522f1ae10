/// \file
/// RunCopier: a file of an output whose store can copy bytes of source files itself, so that this process need not send
/// them, and often need not read them.
#pragma once

#include <cstdint>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

namespace shard {

/// The shortest run that is offered, in bytes. Object stores refuse shorter parts.
inline constexpr std::int64_t kLeastCopiedRun = 5 << 20;

/// Bytes of a file of the output that are one run of bytes of a source file.
struct SourceRun {
  std::string_view source;  ///< RandomReader::name of the source file.
  std::int64_t source_offset = 0;
  std::int64_t offset = 0;  ///< In the file of the output.
  std::int64_t bytes = 0;
  /// This process needs the bytes, for example for a checksum. It reads and writes them, and the store may copy them
  /// instead of receiving them.
  bool is_read = false;
};

/// Bytes [begin, end) of a file.
struct ByteRange {
  std::int64_t begin = 0, end = 0;
};

/// An interface that a FileWriter may have besides its own. Threads: one, and no other member of the writer meanwhile.
class RunCopier {
 public:
  virtual ~RunCopier() = default;
  /// Lets the store copy runs, or parts of them, as the source was when it was opened. Called at most once. What was
  /// written before is in no run. \param runs  sorted and disjoint, each of at least kLeastCopiedRun bytes
  /// \returns the ranges that were copied, sorted and disjoint, which must not be written any more. None is in a run
  ///   that is read. They are empty if the store cannot copy, and too few if a stop was requested.
  /// \throws Error kCorruption  a source file changed; kResource  the output cannot be written; kInterrupted
  virtual std::vector<ByteRange> copy_runs(std::span<const SourceRun> runs, const std::stop_token& stop) = 0;
};

}  // namespace shard

/// \file
/// UploadParts: one rank's files, which are uploaded in parts. Bytes arrive in any order. A part is sent when it is
/// complete. Inside libshard/stores only.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "libshard/core/bytes.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/output.h"
#include "libshard/io/run_copies.h"
#include "libshard/io/scratch_file.h"
#include "libshard/stores/object_store.h"
#include "libshard/stores/part_layout.h"

namespace shard {

/// An object to write, and the parts of it that an earlier run has written.
struct UploadTarget {
  std::string url, upload;
  std::int64_t bytes = 0, part_bytes = 0;
  ByteRange share{};                 ///< See OutputFile.
  bool has_checksums = false;        ///< See UploadNote::File.
  std::vector<StoredPart> stored{};  ///< Parts that may be the same, by number.
  /// The ETag of the object if the earlier run has completed it. Its bytes are read and compared, not sent.
  std::string completed{};
};

/// The bounds of the parts in memory and of the requests under way.
struct UploadLimits {
  std::int64_t memory_bytes = 32 << 20;
  int senders = 8;
};

/// Memory: UploadLimits::memory_bytes, or one part if that is more. If incomplete parts fill it, the oldest is
/// moved to an unnamed file (io/scratch_file.h). Threads: the writers' write_at by several; the rest by one.
class UploadParts {
 public:
  UploadParts(const ObjectStore& store, const UploadLimits& limits);
  ~UploadParts();  ///< Waits for requests under way. Parts that are not complete are dropped.
  UploadParts(const UploadParts&) = delete;
  UploadParts& operator=(const UploadParts&) = delete;

  /// \param on_block  see OutputFile. With it, all runs are read
  /// \returns a writer that lives as long as this. It is a RunCopier. Complete parts in runs that are read are copied
  ///   instead of sent. Others are not copied if parts were sent that are not at the front of the file. Nothing is
  ///   copied to a shared file.
  FileWriter& add(UploadTarget target, std::function<void(std::int64_t, std::span<const std::byte>)> on_block);
  /// Sends the rest of all shares, or of those with an on_block, and waits. Bytes that were never written are zeros.
  /// \throws Error kResource, kInterrupted
  void finish(bool only_with_blocks);
  /// The parts of all shares, by URL. \pre finished
  std::map<std::string, std::vector<StoredPart>> stored() const;
  std::int64_t kept_parts() const { return kept_; }  ///< The parts that an earlier run had sent.

 private:
  class File;
  struct Part;
  using PartPtr = std::shared_ptr<Part>;

  void write(File& file, std::int64_t offset, std::span<const std::byte> data);
  std::vector<ByteRange> copy_runs(File& file, std::span<const SourceRun> runs, const std::stop_token& stop);
  std::optional<std::int64_t> count_sent(const File& file);
  void lay_out_again(File& file, std::vector<std::int64_t> begins, std::int64_t sent);
  void take_back(Part& part, std::vector<std::pair<std::int64_t, Bytes>>& written);
  std::optional<StoredPart> copy_part(const File& file, std::int64_t index, const SourceRun& run);
  std::optional<StoredPart> copy_read_part(const Part& part, std::uint32_t crc);
  bool has_copies(const File& file, std::span<const std::int64_t> copied) const;
  PartPtr part_of(File& file, std::int64_t index);
  void put_bytes(const PartPtr& part, std::int64_t at, std::span<const std::byte> data);
  void take_memory(std::int64_t bytes);
  bool move_out(std::unique_lock<std::mutex>& lock);
  void hand_over(const PartPtr& part);
  PartPtr next_part(std::unique_lock<std::mutex>& lock);
  void run_sender();
  void send(Part& part);
  void compare_completed(const File& file, std::int64_t begin, std::span<const std::byte> bytes) const;
  void rethrow_failure() const;

  const ObjectStore& store_;
  const UploadLimits limits_;
  std::vector<std::unique_ptr<File>> files_;
  /// Guards everything below. Taken after a part's own, which is only tried while it is held.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t used_ = 0;     ///< Bytes of parts in memory.
  int under_way_ = 0;         ///< Complete parts in memory.
  std::deque<PartPtr> open_;  ///< Parts in memory that are not complete, in the order of their first bytes.
  std::deque<PartPtr> ready_, set_aside_;  ///< Complete parts in memory, and in scratch files.
  int unsent_ = 0;                         ///< Complete parts whose request has not ended.
  std::int64_t kept_ = 0;
  std::exception_ptr failure_;
  std::atomic<bool> cannot_copy_{false};  ///< The store refused to copy.
  std::atomic<bool> has_copied_{false};   ///< The store has copied a part of the right size.
  bool is_over_ = false;
  std::vector<std::jthread> senders_;
};

}  // namespace shard

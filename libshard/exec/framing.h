/// \file Writes the frames of storages (checkpoint/writer.h) on the rank that owns the storages.
///
/// If one write contains a whole small storage, its frame is part of that write. A larger storage's frame is written
/// after its last elements, if this rank has all of them, or else at the end. Hashing the file during the writes
/// therefore receives its bytes nearly in order.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/io/file_writer.h"

namespace shard {

/// The frames of one run. Threads: several may call the `append` functions, each for its own storages. write_rest
/// follows after all of them, and may run at once for different files.
class Framing {
 public:
  /// \param is_own  is_own[i]: this rank owns target.storages[i]. Ownership: target and writer must outlive this.
  Framing(const Catalog& target, const Writer& writer, std::vector<std::uint8_t> is_own);

  /// Whether a storage is written together with its frame, because it is small, has a frame, and this rank owns it.
  bool joins(std::uint32_t storage) const { return target_.storages[storage].bytes <= kMostJoined && owns(storage); }
  /// Whether a storage has a frame and this rank owns it.
  bool owns(std::uint32_t storage) const { return is_own_[storage] != 0; }
  std::unique_ptr<StorageFrames> frames() const { return writer_.frames(target_); }
  const Catalog& target() const { return target_; }
  /// Appends the bytes before a storage that joins.
  void append_before(std::uint32_t storage, StorageFrames& frames, std::string& out);
  /// Appends the bytes after a storage, up to the elements of the next non-empty storage. If that storage joins, the
  /// bytes before it are not included.
  void append_after(std::uint32_t storage, std::uint32_t crc32, StorageFrames& frames, std::string& out);
  /// Whether this rank owns the storage, and not the one before it in the file.
  bool is_first(std::uint32_t storage) const;
  /// Writes the frames of this rank's storages in the file that are still missing. \throws Error kResource
  void write_rest(std::uint32_t file, const Checksums& checksums, FileWriter& to) const;

 private:
  /// Appends the bytes from `at` to the storage at `position`, and the frames of empty storages that follow.
  void append_gap(std::uint32_t file, std::size_t position, std::int64_t at, StorageFrames& frames, std::string& out);

  static constexpr std::int64_t kMostJoined = 1 << 16;

  const Catalog& target_;
  const Writer& writer_;
  std::vector<std::uint8_t> is_own_;      ///< By storage. All 0 if storages have no frames.
  std::vector<std::uint8_t> has_before_;  ///< By storage: the frame is written. Bytes, as threads write neighbours.
  std::vector<std::uint8_t> has_after_;
  std::vector<std::uint32_t> in_order_;  ///< Storages that are placed, sorted by file and offset.
  std::vector<std::uint32_t> position_;  ///< By storage: its index in in_order_.
};

/// Collects one worker's frames, and whole storages with their frames, into long writes. Memory: 1 MiB, and the same
/// again while it grows.
class FramedWrites {
 public:
  FramedWrites(Framing& framing, std::span<FileWriter* const> files);
  bool takes(std::uint32_t storage, std::int64_t bytes) const {
    return frames_ != nullptr && bytes == framing_.target().storages[storage].bytes && framing_.joins(storage);
  }
  /// Adds the bytes of a whole storage. \pre takes \returns the number of writes that it made.
  int add(std::uint32_t storage, std::span<const std::byte> bytes, std::uint32_t crc32);
  /// Call it before the first bytes of any other storage are written. \returns the number of writes that it made.
  int begin(std::uint32_t storage);
  /// Call it after any other storage is completely written. \returns the number of writes that it made.
  int end(std::uint32_t storage, std::uint32_t crc32);
  /// Writes everything collected. \returns the number of writes that it made.
  int flush();

 private:
  struct Run {
    std::int64_t begin = 0;
    std::string bytes;
  };
  bool write(std::uint32_t file, Run& run);

  Framing& framing_;
  std::span<FileWriter* const> files_;
  std::unique_ptr<StorageFrames> frames_;
  std::map<std::uint32_t, Run> runs_;  ///< By file, because the pieces of a tensor can be in many files.
  std::size_t collected_ = 0;
  std::string text_;
};

}  // namespace shard

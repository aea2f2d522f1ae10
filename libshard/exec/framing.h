/// \file
/// The frames of storages (checkpoint/writer.h), written by the rank that owns the file: together with the elements
/// where one write has a whole small storage, else when all elements are written.
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

/// The frames of one run. Threads: `add`s by several, each for storages of its own; write_rest after all of them, at
/// once for different files.
class Framing {
 public:
  /// `is_own[i]`: this rank owns target.files[i]. Ownership: target and writer must outlive this.
  Framing(const Catalog& target, const Writer& writer, std::vector<bool> is_own);

  /// Whether a storage is written with its frame: it is small, has a frame, and its file is this rank's.
  bool joins(std::uint32_t storage) const {
    const Storage& each = target_.storages[storage];
    return each.bytes <= kMostJoined && is_own_[each.file];
  }
  std::unique_ptr<StorageFrames> frames() const { return writer_.frames(target_); }
  const Catalog& target() const { return target_; }
  void mark_written(std::uint32_t storage) { is_written_[storage] = 1; }
  /// Writes the frames of the file's storages that are still missing. \throws Error kResource
  void write_rest(std::uint32_t file, const Checksums& checksums, FileWriter& to) const;

 private:
  static constexpr std::int64_t kMostJoined = 1 << 16;

  const Catalog& target_;
  const Writer& writer_;
  std::vector<bool> is_own_;              ///< By file; all false where storages have no frames.
  std::vector<std::uint8_t> is_written_;  ///< By storage; not bits, as threads write neighbours.
  std::vector<std::uint32_t> by_file_;    ///< Storages by file.
  std::vector<std::size_t> begins_;       ///< Where each file begins in by_file_, and the end.
};

/// Whole storages with their frames, collected to long writes by one worker.
/// Memory: 1 MiB, and once more while it grows.
class FramedWrites {
 public:
  FramedWrites(Framing& framing, std::span<FileWriter* const> files);
  bool takes(std::uint32_t storage, std::int64_t bytes) const {
    return frames_ != nullptr && bytes == framing_.target().storages[storage].bytes && framing_.joins(storage);
  }
  /// The bytes of a whole storage. \pre takes \returns the number of writes that were made.
  int add(std::uint32_t storage, std::span<const std::byte> bytes, std::uint32_t crc32);
  /// Writes what was collected. \returns the number of writes that were made.
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
  std::map<std::uint32_t, Run> runs_;  ///< By file: the pieces of a tensor lie in many.
  std::size_t collected_ = 0;
  std::string before_;
};

}  // namespace shard

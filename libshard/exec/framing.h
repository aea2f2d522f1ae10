/// \file
/// The frames of storages (checkpoint/writer.h), written by the rank that owns the file: together with the elements
/// where one write has a whole small storage, behind a larger one's last elements where this rank has all of them, else
/// in the end. Whoever hashes a file while it is written thus sees its bytes nearly in order.
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
  bool joins(std::uint32_t storage) const { return target_.storages[storage].bytes <= kMostJoined && owns(storage); }
  /// Whether a storage has a frame and its file is this rank's.
  bool owns(std::uint32_t storage) const { return is_own_[target_.storages[storage].file]; }
  std::unique_ptr<StorageFrames> frames() const { return writer_.frames(target_); }
  const Catalog& target() const { return target_; }
  /// Appends what stands before a storage that joins.
  void append_before(std::uint32_t storage, StorageFrames& frames, std::string& out);
  /// Appends what stands behind a storage, up to the elements of the next one that has some, unless that joins.
  void append_after(std::uint32_t storage, std::uint32_t crc32, StorageFrames& frames, std::string& out);
  /// Whether nothing that is framed stands before the storage in its file, which is this rank's.
  bool is_first(std::uint32_t storage) const;
  /// Writes the frames of the file's storages that are still missing. \throws Error kResource
  void write_rest(std::uint32_t file, const Checksums& checksums, FileWriter& to) const;

 private:
  /// Appends what stands at `at`, before the storage at `position`, and then of empty storages.
  void append_gap(std::uint32_t file, std::size_t position, std::int64_t at, StorageFrames& frames, std::string& out);

  static constexpr std::int64_t kMostJoined = 1 << 16;

  const Catalog& target_;
  const Writer& writer_;
  std::vector<bool> is_own_;              ///< By file; all false where storages have no frames.
  std::vector<std::uint8_t> has_before_;  ///< By storage: what is written. Not bits, as threads write neighbours.
  std::vector<std::uint8_t> has_after_;
  std::vector<std::uint32_t> in_order_;  ///< Storages with a place, by file and offset.
  std::vector<std::uint32_t> position_;  ///< By storage: where it is in in_order_.
};

/// One worker's frames, and whole storages with theirs, which it collects to long writes.
/// Memory: 1 MiB, and once more while it grows.
class FramedWrites {
 public:
  FramedWrites(Framing& framing, std::span<FileWriter* const> files);
  bool takes(std::uint32_t storage, std::int64_t bytes) const {
    return frames_ != nullptr && bytes == framing_.target().storages[storage].bytes && framing_.joins(storage);
  }
  /// The bytes of a whole storage. \pre takes \returns the number of writes that were made.
  int add(std::uint32_t storage, std::span<const std::byte> bytes, std::uint32_t crc32);
  /// To be called before the first bytes of any other storage are written. \returns the number of writes that were
  /// made.
  int begin(std::uint32_t storage);
  /// To be called when all of any other storage is written. \returns the number of writes that were made.
  int end(std::uint32_t storage, std::uint32_t crc32);
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
  std::string text_;
};

}  // namespace shard

/// \file
/// BlockHashes: the hashes of a file's blocks, made while the file is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/digest.h"
#include "libshard/io/file_writer.h"

namespace shard {

/// Bytes of a block may come in any pieces and in nearly any order. A piece is hashed on arrival if everything before
/// it in the block is already hashed. An early piece is read back later, usually from the page cache. A block of which
/// a piece comes twice, or never (a clone, a hole), or of which very many come early, is not known in the end and must
/// be read back. Threads: any may add. Memory: a hash in hexadecimal and a byte for each block, 600 bytes for each that
/// is begun, and at most 64 spans of it.
class BlockHashes {
 public:
  BlockHashes(std::int64_t bytes, HashAlgorithm algorithm);
  /// Hashes a piece of one block if it is its turn. \returns whether that is all: else the piece must be written to
  /// `file`, and then added. `file` is the one that all pieces are of. \throws Error kResource  from reading back
  bool add_next(std::int64_t offset_bytes, std::span<const std::byte> piece, FileWriter& file);
  /// The same for a piece that was written: it is hashed now or later.
  void add_written(std::int64_t offset_bytes, std::span<const std::byte> piece, FileWriter& file);
  /// Sets the hash of a block that was read back, or that another rank made.
  void set(std::int64_t block, std::string_view hash);
  bool is_known(std::int64_t block) const { return states_[static_cast<std::size_t>(block)] == State::kDone; }
  std::int64_t blocks() const { return static_cast<std::int64_t>(states_.size()); }
  std::string_view hash_of(std::int64_t block) const;
  /// All of them, as ManifestFile::blocks. \pre every block is known
  std::string take() { return std::move(hashes_); }

 private:
  enum class State : std::uint8_t {
    kFresh,  ///< Nothing was added.
    kBegun,
    kLost,  ///< Must be read back.
    kDone,
  };
  /// Invariant: what lies before `end` is hashed, or is being hashed by the one thread for which is_busy stands; what
  /// is in `early` is written and begins behind `end`, or at it while is_busy.
  struct Begun {
    Begun(std::int64_t from, HashAlgorithm algorithm) : end(from), hasher(algorithm) {}
    std::int64_t end;
    bool is_busy = false;
    std::map<std::int64_t, std::int64_t> early;  ///< Spans of the file, from begin to end; neighbours are joined.
    Hasher hasher;
  };
  using BegunPtr =
      std::shared_ptr<Begun>;  ///< A thread may still be hashing a block that another thread has marked lost.
  enum class Turn { kNow, kLater, kNever };

  Turn claim(std::int64_t block, std::int64_t begin, std::int64_t end, BegunPtr& begun);
  void keep_early(std::int64_t block, Begun& begun, std::int64_t begin, std::int64_t end);
  void hash(std::int64_t block, Begun& begun, std::span<const std::byte> piece, FileWriter& file);
  bool take_early(std::int64_t block, Begun& begun, std::int64_t& from);
  Turn lose(std::int64_t block);

  const std::int64_t bytes_;
  const HashAlgorithm algorithm_;
  std::mutex mutex_;
  std::vector<State> states_;
  std::map<std::int64_t, BegunPtr> begun_;
  std::string hashes_;
};

/// Writes through to another writer and hashes what passes. Ownership: borrows both.
class HashingWriter final : public FileWriter {
 public:
  HashingWriter(FileWriter& to, BlockHashes& hashes) : to_(to), hashes_(hashes) {}
  void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) override;
  void read_back(std::int64_t offset_bytes, std::span<std::byte> out) override { to_.read_back(offset_bytes, out); }
  void allocate(std::int64_t bytes) override { to_.allocate(bytes); }
  void sync() override { to_.sync(); }
  void close() override { to_.close(); }
  int descriptor() const override { return to_.descriptor(); }

 private:
  FileWriter& to_;
  BlockHashes& hashes_;
};

}  // namespace shard

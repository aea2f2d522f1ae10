/// \file BlockHashes: computes the hashes of a file's blocks while the file is written.
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

/// Computes block hashes from pieces that arrive in nearly any order. A piece is hashed on arrival if everything before
/// it in the block is already hashed. An early piece is read back later, usually from the page cache.
///
/// Some blocks remain unknown and must be read back at the end: a block with a piece that came twice or never (a clone,
/// a hole), or one with very many early pieces.
///
/// Threads: any may add. Memory: a hash in hexadecimal and a byte per block, and 600 bytes and at most 64 spans for
/// each block in progress.
class BlockHashes {
 public:
  BlockHashes(std::int64_t bytes, HashAlgorithm algorithm);
  /// Hashes a piece of one block if all bytes before it in the block are hashed. \returns whether the piece is done. If
  /// not, the caller must write the piece to `file`, and then call add_written. `file` contains all pieces.
  /// \throws Error kResource  from reading back
  bool add_next(std::int64_t offset_bytes, std::span<const std::byte> piece, FileWriter& file);
  /// Adds a piece that is already written. It is hashed now or later.
  void add_written(std::int64_t offset_bytes, std::span<const std::byte> piece, FileWriter& file);
  /// Sets the hash of a block that was read back, or that a different rank computed.
  void set(std::int64_t block, std::string_view hash);
  bool is_known(std::int64_t block) const { return states_[static_cast<std::size_t>(block)] == State::kDone; }
  std::int64_t blocks() const { return static_cast<std::int64_t>(states_.size()); }
  std::string_view hash_of(std::int64_t block) const;
  /// All hashes, in the form of ManifestFile::blocks. \pre every block is known
  std::string take() { return std::move(hashes_); }

 private:
  enum class State : std::uint8_t {
    kFresh,  ///< No piece was added.
    kBegun,
    kLost,  ///< The block must be read back.
    kDone,
  };
  /// A block in progress. Invariant: the bytes before `end` are hashed, or the one thread that set is_busy is hashing
  /// them. The spans in `early` are written and begin after `end`, or at `end` while is_busy is set.
  struct Begun {
    Begun(std::int64_t from, HashAlgorithm algorithm) : end(from), hasher(algorithm) {}
    std::int64_t end;
    bool is_busy = false;
    std::map<std::int64_t, std::int64_t> early;  ///< Spans of the file: begin to end. Adjacent spans are joined.
    Hasher hasher;
  };
  /// A thread may still be hashing a block that another thread has marked lost.
  using BegunPtr = std::shared_ptr<Begun>;
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

/// Forwards all writes to another writer and hashes the bytes. Ownership: borrows both.
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

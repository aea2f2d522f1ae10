/// \file
/// BlockHashes: the hashes of a file's blocks, made while the file is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/digest.h"
#include "libshard/io/file_writer.h"

namespace shard {

/// Bytes of a block may come in any pieces. Those that come in the order of the file are hashed as they come; a block
/// of which a piece comes too early, or twice, or never (a clone, a hole), is `missing` and must be read back. Threads:
/// any may add. Memory: a hash in hexadecimal and a byte for each block, 600 bytes for each that is begun.
class BlockHashes {
 public:
  BlockHashes(std::int64_t bytes, HashAlgorithm algorithm);
  void add(std::int64_t offset_bytes, std::span<const std::byte> data);
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
    kOpen,   ///< Its begin was added, and a hasher waits for what follows.
    kBusy,   ///< A thread hashes a piece of it.
    kLost,   ///< Must be read back.
    kDone,
  };
  struct Begun {
    std::int64_t end = 0;  ///< Up to which byte of the file it is hashed.
    Hasher hasher;
  };
  void add_piece(std::int64_t block, std::int64_t begin, std::span<const std::byte> piece);
  Begun take_begun(std::int64_t block, std::int64_t begin, bool& is_lost);
  void keep(std::int64_t block, Begun begun, bool is_complete);

  const std::int64_t bytes_;
  const HashAlgorithm algorithm_;
  std::mutex mutex_;
  std::vector<State> states_;
  std::map<std::int64_t, Begun> begun_;
  std::string hashes_;
};

/// Writes through to another writer and hashes what passes. Ownership: borrows both.
class HashingWriter final : public FileWriter {
 public:
  HashingWriter(FileWriter& to, BlockHashes& hashes) : to_(to), hashes_(hashes) {}
  void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) override {
    to_.write_at(offset_bytes, data);
    hashes_.add(offset_bytes, data);
  }
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

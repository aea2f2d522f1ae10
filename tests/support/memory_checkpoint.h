/// \file
/// Checkpoints in memory that a test fills by hand: a Reader over byte arrays, and FileWriters that count how often
/// each byte was written.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"

namespace shard::testing {

class MemoryFile : public RandomReader {
 public:
  explicit MemoryFile(std::vector<std::byte> bytes, bool is_lent = false)
      : bytes_(std::move(bytes)), is_lent_(is_lent) {
    name_ = "memory";
  }
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    const auto end = static_cast<std::size_t>(offset_bytes) + out.size();
    if (offset_bytes < 0 || end > bytes_.size()) {
      throw Error(ErrorCode::kCorruption, "read past the end").in_file(name_).of_kind(FindingKind::kTruncated);
    }
    std::memcpy(out.data(), bytes_.data() + offset_bytes, out.size());
  }
  std::span<const std::byte> in_memory(std::int64_t offset_bytes, std::size_t bytes) const override {
    if (!is_lent_) return {};
    lent_bytes += static_cast<std::int64_t>(bytes);
    return std::span(bytes_).subspan(static_cast<std::size_t>(offset_bytes), bytes);
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(bytes_.size()); }

  mutable std::atomic<std::int64_t> lent_bytes = 0;

 private:
  std::vector<std::byte> bytes_;
  const bool is_lent_;  ///< in_memory offers them.
};

class MemoryReader : public Reader {
 public:
  MemoryReader(const Catalog& catalog, std::vector<std::vector<std::byte>> files, bool is_lent = false)
      : catalog_(catalog) {
    for (std::vector<std::byte>& each : files) files_.push_back(std::make_shared<MemoryFile>(std::move(each), is_lent));
  }
  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return files_.at(index); }
  std::int64_t lent_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& each : files_) bytes += each->lent_bytes;
    return bytes;
  }

 private:
  const Catalog& catalog_;
  std::vector<std::shared_ptr<const MemoryFile>> files_;
};

class CountingWriter : public FileWriter {
 public:
  explicit CountingWriter(std::int64_t size)
      : bytes(static_cast<std::size_t>(size)), writes(static_cast<std::size_t>(size)) {}
  void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) override {
    const std::scoped_lock lock(mutex_);
    if (room_for_writes == 0) {
      ++refused;
      throw Error(ErrorCode::kResource, "cannot write: disk full").in_file("memory");
    }
    if (room_for_writes > 0) --room_for_writes;
    const auto begin = static_cast<std::size_t>(offset_bytes);
    if (begin + data.size() > bytes.size()) throw Error(ErrorCode::kResource, "write past the end").in_file("memory");
    std::memcpy(bytes.data() + begin, data.data(), data.size());
    for (std::size_t i = begin; i < begin + data.size(); ++i) ++writes[i];
  }
  std::span<std::byte> in_memory(std::int64_t offset_bytes, std::size_t count) override {
    if (!is_lent) return {};
    const std::scoped_lock lock(mutex_);
    const auto begin = static_cast<std::size_t>(offset_bytes);
    for (std::size_t i = begin; i < begin + count; ++i) ++writes[i];
    lent_bytes += static_cast<std::int64_t>(count);
    return std::span(bytes).subspan(begin, count);
  }
  void allocate(std::int64_t) override {}
  void sync() override {}
  void close() override {}

  bool is_lent = false;  ///< in_memory returns the bytes, and counts them as written.
  std::int64_t lent_bytes = 0;
  std::vector<std::byte> bytes;
  std::vector<unsigned char> writes;  ///< Visits of each byte.
  int room_for_writes = -1;           ///< The number of writes that succeed before all fail; negative: none fails.
  int refused = 0;                    ///< The number of writes that failed for this reason.

 private:
  std::mutex mutex_;
};

/// Writers for files of these sizes, for `execute`.
struct CountingFiles {
  explicit CountingFiles(const std::vector<File>& files) {
    for (const File& file : files) {
      owned.push_back(std::make_unique<CountingWriter>(file.bytes));
      writers.push_back(owned.back().get());
    }
  }
  std::vector<std::unique_ptr<CountingWriter>> owned;
  std::vector<FileWriter*> writers;
};

/// One chunk of a tensor that a test describes: a box, its strides, and the place of its first element.
struct MadeChunk {
  std::vector<std::int64_t> offsets, sizes, strides;
  std::int64_t first = 0;
  std::uint32_t storage = 0;
  std::int32_t rank = -1;
};

/// Adds a tensor with its chunks, which are sorted here; one stored tensor per chunk. The test adds storages and files.
inline std::uint32_t add_tensor(Catalog& catalog, const std::string& name, DType dtype, std::vector<std::int64_t> shape,
                                std::vector<MadeChunk> chunks) {
  Arena& arena = *catalog.arena;
  std::stable_sort(chunks.begin(), chunks.end(), [](const MadeChunk& a, const MadeChunk& b) {
    return a.offsets != b.offsets ? a.offsets < b.offsets : a.rank < b.rank;
  });
  Tensor tensor;
  tensor.name = arena.copy(name);
  tensor.shape = arena.dims(shape);
  tensor.dtype = dtype;
  tensor.first_chunk = static_cast<std::uint32_t>(catalog.chunks.size());
  tensor.chunk_count = static_cast<std::uint32_t>(chunks.size());
  tensor.source = static_cast<std::uint32_t>(catalog.tensors.size());
  for (const MadeChunk& each : chunks) {
    StoredTensor stored;
    stored.shape = arena.dims(each.sizes);
    stored.strides = arena.dims(each.strides);
    stored.first = each.first;
    stored.storage = each.storage;
    stored.rank = each.rank;
    stored.dtype = dtype;
    Chunk chunk;
    chunk.offsets = arena.dims(each.offsets);
    chunk.sizes = arena.dims(each.sizes);
    chunk.strides = arena.dims(each.strides);
    chunk.first = each.first;
    chunk.stored = static_cast<std::uint32_t>(catalog.stored.size());
    catalog.stored.push_back(stored);
    catalog.chunks.push_back(chunk);
  }
  catalog.tensors.push_back(tensor);
  return static_cast<std::uint32_t>(catalog.tensors.size() - 1);
}

/// Adds a storage of `bytes` at the end of a file, which is created if necessary. \returns its index.
inline std::uint32_t add_storage(Catalog& catalog, std::uint32_t file, std::int64_t bytes, std::int64_t gap = 0) {
  while (catalog.files.size() <= file) catalog.files.push_back({fmt::format("file{}", catalog.files.size()), 0, -1});
  catalog.storages.push_back({.offset = catalog.files[file].bytes + gap, .bytes = bytes, .file = file});
  catalog.files[file].bytes += gap + bytes;
  return static_cast<std::uint32_t>(catalog.storages.size() - 1);
}

}  // namespace shard::testing

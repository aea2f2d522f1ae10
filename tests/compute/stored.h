/// \file
/// Checkpoints in memory that a test of libshard/compute fills tensor by tensor, and what a reader makes of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libshard/checkpoint/container_report.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/exec/execute.h"
#include "libshard/exec/small_float.h"
#include "libshard/exec/tensor_reader.h"
#include "tests/support/memory_checkpoint.h"

namespace shard::test {

using Numbers = std::vector<std::int64_t>;
using Bytes = std::vector<std::byte>;

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Owns the catalog that it refers to, and counts calls of locate, reads and their bytes.
class StoredReader final : public Reader {
 public:
  StoredReader(Catalog catalog, Bytes file)
      : catalog_(std::move(catalog)), file_(std::make_shared<File>(std::move(file))) {}

  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override { ++locates_; }
  std::shared_ptr<const RandomReader> file(std::uint32_t) const override { return file_; }
  bool check_container(std::uint32_t, ContainerReport&) const override { return true; }
  std::int64_t bytes_read() const { return file_->bytes_read; }
  std::int64_t reads() const { return file_->reads; }
  int locates() const { return locates_; }

 private:
  struct File final : testing::MemoryFile {
    using MemoryFile::MemoryFile;
    void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
      bytes_read += std::ssize(out);
      ++reads;
      MemoryFile::read_at(offset_bytes, out);
    }
    mutable std::atomic<std::int64_t> bytes_read = 0, reads = 0;
  };

  Catalog catalog_;
  std::shared_ptr<File> file_;
  int locates_ = 0;
};

/// Ignores everything.
class NoReport final : public ContainerReport {
 public:
  void on_crc_run(CrcRange) override {}
  void on_crcs_checked(std::int64_t) override {}
  void on_global(std::string_view) override {}
  Findings& findings() override { return throwing_findings(); }
};

class Stored {
 public:
  template <class T>
  Stored& add(const std::string& name, DType dtype, const Numbers& shape, const std::vector<T>& values) {
    return add(name, dtype, shape, bytes_of(values));
  }
  Stored& add(const std::string& name, DType dtype, const Numbers& shape, const Bytes& bytes) {
    Numbers strides(shape.size()), zeros(shape.size());
    row_major_strides(shape, strides);
    const std::uint32_t storage = testing::add_storage(catalog_, 0, std::ssize(bytes));
    testing::add_tensor(catalog_, name, dtype, shape, {{zeros, shape, strides, 0, storage}});
    file_.insert(file_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  void set_metadata(const std::string& key, const std::string& text) { catalog_.metadata[key] = text; }
  /// One more name for a tensor that was added with `add`.
  Stored& add_alias(const std::string& name, const std::string& of) {
    const Tensor tensor = *std::ranges::find(catalog_.tensors, std::string_view(of), &Tensor::name);
    const Chunk chunk = catalog_.chunks[tensor.first_chunk];
    const auto numbers = [](Dims dims) { return Numbers(dims.begin(), dims.end()); };
    testing::add_tensor(catalog_, name, tensor.dtype, numbers(tensor.shape),
                        {{numbers(chunk.offsets), numbers(chunk.sizes), numbers(chunk.strides), chunk.first,
                          catalog_.stored_of(chunk).storage}});
    return *this;
  }
  /// The same in chunks of `rows` x `columns`, each with a storage of its own.
  Stored& add_cut(const std::string& name, DType dtype, const Numbers& shape, const Bytes& bytes, std::int64_t rows,
                  std::int64_t columns) {
    const std::int64_t element = element_bytes(dtype);
    std::vector<testing::MadeChunk> chunks;
    for (std::int64_t r = 0; r < shape[0]; r += rows) {
      for (std::int64_t c = 0; c < shape[1]; c += columns) {
        const std::int64_t height = std::min(rows, shape[0] - r), width = std::min(columns, shape[1] - c);
        const std::uint32_t storage = testing::add_storage(catalog_, 0, height * width * element);
        chunks.push_back({{r, c}, {height, width}, {width, 1}, 0, storage});
        for (std::int64_t i = 0; i < height; ++i) {
          const auto* const from = bytes.data() + ((r + i) * shape[1] + c) * element;
          file_.insert(file_.end(), from, from + width * element);
        }
      }
    }
    testing::add_tensor(catalog_, name, dtype, shape, chunks);
    return *this;
  }
  std::unique_ptr<StoredReader> reader() {
    validate_catalog(catalog_);
    return std::make_unique<StoredReader>(catalog_, file_);
  }

 private:
  Catalog catalog_;
  Bytes file_;
};

struct Part {
  const char* name;
  DType dtype;
  Numbers shape;
};

inline Stored zeros_of(const std::vector<Part>& parts) {
  Stored stored;
  for (const Part& part : parts) {
    const std::int64_t bytes = checked_bytes(checked_numel(part.shape), part.dtype);
    stored.add(part.name, part.dtype, part.shape, Bytes(static_cast<std::size_t>(bytes)));
  }
  return stored;
}

/// All elements of a tensor in row-major order.
inline Bytes read_tensor(Reader& reader, const std::string& name) {
  const Tensor& tensor = *reader.catalog().find(name);
  const auto index = static_cast<std::uint32_t>(&tensor - reader.catalog().tensors.data());
  reader.locate(std::span(&index, 1));
  const std::int64_t elements = checked_numel(tensor.shape);
  Bytes bytes(static_cast<std::size_t>(checked_bytes(elements, tensor.dtype)));
  Progress progress;
  TensorReader(reader.catalog(), reader, index, progress).read(0, elements, bytes);
  return bytes;
}

inline std::vector<float> read_bfloat16(Reader& reader, const std::string& name) {
  const Bytes bytes = read_tensor(reader, name);
  std::vector<float> values(bytes.size() / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t code = 0;
    std::memcpy(&code, bytes.data() + 2 * i, 2);
    values[i] = Bfloat16::decode(code);
  }
  return values;
}

inline float rounded(double value) { return Bfloat16::decode(Bfloat16::encode(static_cast<float>(value))); }

/// The obvious way: bit by bit.
inline std::uint32_t code_at(const Bytes& bits, std::int64_t first_bit, int width) {
  std::uint32_t code = 0;
  for (int i = 0; i < width; ++i) {
    const std::int64_t bit = first_bit + i;
    const auto byte = static_cast<unsigned>(bits[static_cast<std::size_t>(bit / 8)]);
    code |= ((byte >> (bit % 8)) & 1U) << i;
  }
  return code;
}

}  // namespace shard::test

/// \file
/// A file of bytes in memory, and golden files of tests/data, for tests of containers.
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "libshard/core/error.h"
#include "libshard/io/local_disk.h"

namespace shard::testing {

class BytesFile : public RandomReader {
 public:
  explicit BytesFile(std::string bytes, std::string name = "test.pt") : bytes_(std::move(bytes)) {
    name_ = std::move(name);
  }
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    ++reads_;
    if (offset_bytes < 0 || out.size() > bytes_.size() ||
        static_cast<std::size_t>(offset_bytes) > bytes_.size() - out.size()) {
      throw Error(ErrorCode::kCorruption, "the file ends before").of_kind(FindingKind::kTruncated);
    }
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset_bytes, out.size());
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(bytes_.size()); }
  int reads() const { return reads_; }

 private:
  std::string bytes_;
  mutable int reads_ = 0;
};

/// The content of a file below tests/data (SHARD_TEST_DATA).
inline std::string golden(const std::string& name) {
  std::ifstream file(std::string(SHARD_TEST_DATA) + "/" + name, std::ios::binary);
  if (!file) throw std::runtime_error("no golden file " + name);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace shard::testing

#include "libshard/compare/equal_tensors.h"

#include <gtest/gtest.h>

#include "tests/support/memory_checkpoint.h"

namespace shard {

namespace {

constexpr std::int64_t kBytes = 4 * kBlockBytes;

/// Counts the bytes that are read.
class CountedFile : public RandomReader {
 public:
  CountedFile(std::shared_ptr<const RandomReader> file, std::int64_t& bytes) : file_(std::move(file)), bytes_(bytes) {}
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    bytes_ += std::ssize(out);
    file_->read_at(offset_bytes, out);
  }
  std::int64_t size() const override { return file_->size(); }

 private:
  std::shared_ptr<const RandomReader> file_;
  std::int64_t& bytes_;
};

class CountedReader : public testing::MemoryReader {
 public:
  using MemoryReader::MemoryReader;
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override {
    return std::make_shared<CountedFile>(MemoryReader::file(index), bytes);
  }
  mutable std::int64_t bytes = 0;
};

/// Tensors of zeros but for their last byte.
struct Zeros {
  explicit Zeros(const std::string& last_bytes) {
    std::vector<std::byte> content;
    for (const char last : last_bytes) {
      testing::add_tensor(catalog, fmt::format("t{}", catalog.tensors.size()), DType::kUint8, {kBytes},
                          {{{0}, {kBytes}, {1}, 0, testing::add_storage(catalog, 0, kBytes)}});
      content.resize(content.size() + kBytes);
      content.back() = static_cast<std::byte>(last);
    }
    for (std::uint32_t i = 0; i < catalog.tensors.size(); ++i) {
      chosen.push_back({i, DType::kUint8, catalog.tensors[i].name, {}});
    }
    reader = std::make_unique<CountedReader>(catalog, std::vector<std::vector<std::byte>>{content});
  }
  Catalog catalog = source_catalog();
  std::vector<SelectedTensor> chosen;
  std::unique_ptr<CountedReader> reader;
};

TEST(EqualTensors, AreEqualIfEveryByteIs) {
  const Zeros zeros("aab");
  EqualTensors tensors(*zeros.reader, 8 << 20);
  EXPECT_TRUE(tensors.may_be_equal(zeros.chosen[0], zeros.chosen[1]));
  EXPECT_TRUE(tensors.are_equal(zeros.chosen[0], zeros.chosen[1]));
  EXPECT_FALSE(tensors.may_be_equal(zeros.chosen[0], zeros.chosen[2]));
  EXPECT_FALSE(tensors.are_equal(zeros.chosen[0], zeros.chosen[2]));
}

TEST(EqualTensors, ManyThatBeginAlikeAreReadOnce) {
  const Zeros zeros("abcdefgh");
  EqualTensors tensors(*zeros.reader, 8 << 20);
  for (const SelectedTensor& a : zeros.chosen) {
    for (const SelectedTensor& b : zeros.chosen) EXPECT_EQ(tensors.may_be_equal(a, b), a.source == b.source);
  }
  EXPECT_EQ(zeros.reader->bytes, std::ssize(zeros.chosen) * (kBytes + kBlockBytes));
}

}  // namespace
}  // namespace shard

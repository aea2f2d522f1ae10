// The pass over all bytes: its cost does not grow with damage, nor with the size that a sparse file claims.
#include "libshard/verify/data_pass.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "libshard/core/error.h"
#include "tests/support/cpu_time.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

TEST(StoredCrcs, ADifferenceNamesItsTensorInShortTime) {
  constexpr std::int64_t kRuns = 100'000;
  Catalog catalog;
  catalog.files.push_back({"f", kRuns, -1});
  for (std::int64_t i = 0; i < kRuns; ++i) {
    const std::uint32_t storage = testing::add_storage(catalog, 0, 1);
    testing::add_tensor(catalog, fmt::format("w{:06}", i), DType::kUint8, {1}, {{{0}, {1}, {1}, 0, storage}});
    catalog.storages.back().offset = i;
  }
  validate_catalog(catalog);
  CollectedFindings found;
  StoredCrcs sums(catalog, found);
  const double seconds = test::cpu_seconds([&] {
    for (std::int64_t i = kRuns - 1; i >= 0; --i) sums.compare(0, {i, 2, 0, "a record"}, 1);
  });
  ASSERT_EQ(found.all().size(), static_cast<std::size_t>(kRuns));
  EXPECT_EQ(found.all()[kRuns - 1].tensor(), "w000000");
  EXPECT_EQ(found.all()[0].tensor(), "w099999");
  EXPECT_LT(seconds, test::cpu_limit(2));  // If each difference visits all tensors, it takes 10 seconds.
}

/// A file of 64 TiB, of which the first bytes are stored.
struct SparseFile final : RandomReader {
  static constexpr std::int64_t kBytes = std::int64_t{1} << 46;

  void read_at(std::int64_t /*offset_bytes*/, std::span<std::byte> out) const override {
    std::ranges::fill(out, std::byte{0});
    read += std::ssize(out);
  }
  std::int64_t size() const override { return kBytes; }
  std::int64_t allocated_bytes(std::int64_t offset_bytes, std::int64_t count) const override {
    ++asked;
    return offset_bytes < 8 ? std::min<std::int64_t>(count, 8 - offset_bytes) : 0;
  }

  mutable std::int64_t read = 0, asked = 0;
};

struct SparseReader final : Reader {
  const Catalog& catalog() const override { return empty; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t) const override { return content; }

  Catalog empty;
  std::shared_ptr<SparseFile> content = std::make_shared<SparseFile>();
};

TEST(DataPass, HolesOfAVastFileAreSkipped) {
  SparseReader reader;
  CollectedFindings found;
  PassParts parts;
  parts.reader = &reader;
  parts.files.push_back({.path = "f", .bytes = SparseFile::kBytes, .file = 0});
  parts.findings = &found;
  Progress progress;
  DataPass pass(parts, progress);
  EXPECT_EQ(pass.total_bytes(), SparseFile::kBytes);
  pass.run(0, 1, 1, {});
  EXPECT_EQ(reader.content->read, 4 << 20);
  EXPECT_LT(reader.content->asked, 100'000);
  EXPECT_TRUE(found.all().empty());
}

}  // namespace
}  // namespace shard

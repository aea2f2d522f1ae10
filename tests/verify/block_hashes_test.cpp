// Hashes of blocks are those of the file, regardless of the pieces in which it was written.
#include "libshard/manifest/block_hashes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <utility>

#include "libshard/manifest/manifest.h"

namespace shard {
namespace {

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937_64 random(7);
  std::vector<std::byte> bytes(count);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

std::string hash_of(std::span<const std::byte> bytes) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(bytes);
  return hasher.finish_hex();
}

const std::vector<std::byte> kFile = random_bytes(2 * kManifestBlock + 1000);

std::span<const std::byte> part(std::size_t begin, std::size_t end) {
  return std::span(kFile).subspan(begin, end - begin);
}

/// The file in memory, and how much of it was read back.
class MemoryFile final : public FileWriter {
 public:
  void write_at(std::int64_t offset, std::span<const std::byte> data) override {
    std::ranges::copy(data, content_.begin() + offset);
  }
  void read_back(std::int64_t offset, std::span<std::byte> out) override {
    std::copy_n(content_.begin() + offset, out.size(), out.begin());
    read_bytes += std::ssize(out);
  }
  void allocate(std::int64_t) override {}
  void sync() override {}
  void close() override {}

  std::atomic<std::int64_t> read_bytes = 0;

 private:
  std::vector<std::byte> content_ = std::vector<std::byte>(kFile.size());
};

class BlockHashesOf : public ::testing::Test {
 protected:
  MemoryFile file;
  BlockHashes hashes{std::ssize(kFile), HashAlgorithm::kXxh3_128};
  HashingWriter writer{file, hashes};

  void write(std::size_t begin, std::size_t end) {
    writer.write_at(static_cast<std::int64_t>(begin), part(begin, end));
  }
  /// Checks that each block is known and has the hash of its bytes.
  void expect_all() const {
    ASSERT_EQ(hashes.blocks(), 3);
    for (std::int64_t block = 0; block < 3; ++block) {
      ASSERT_TRUE(hashes.is_known(block)) << block;
      const auto begin = static_cast<std::size_t>(block * kManifestBlock);
      EXPECT_EQ(hashes.hash_of(block), hash_of(part(begin, std::min(kFile.size(), begin + kManifestBlock)))) << block;
    }
  }
};

TEST_F(BlockHashesOf, PiecesInOrderAreMadeWithoutReading) {
  for (std::size_t at = 0; at < kFile.size(); at += 300'001) write(at, std::min(kFile.size(), at + 300'001));
  expect_all();
  EXPECT_EQ(file.read_bytes, 0);
}

TEST_F(BlockHashesOf, PiecesThatComeEarlyReadThoseBack) {
  write(1000, 2000);
  write(5000, kFile.size());
  write(3000, 5000);
  EXPECT_FALSE(hashes.is_known(0));
  write(2000, 3000);
  EXPECT_EQ(file.read_bytes, 0);
  write(0, 1000);
  expect_all();
  EXPECT_EQ(file.read_bytes, kManifestBlock - 1000);
}

TEST_F(BlockHashesOf, ManyEarlyPiecesAreLeftToBeReadInTheEnd) {
  for (std::size_t at = 1; at < 200; at += 2) write(at, at + 1);
  for (std::size_t at = 0; at < 200; at += 2) write(at, at + 1);
  write(200, kFile.size());
  EXPECT_FALSE(hashes.is_known(0));
  EXPECT_TRUE(hashes.is_known(1));
  EXPECT_TRUE(hashes.is_known(2));
}

TEST_F(BlockHashesOf, APieceThatIsWrittenTwiceLosesItsBlock) {
  write(0, kFile.size());
  ASSERT_TRUE(hashes.is_known(1));
  write(kManifestBlock + 5, kManifestBlock + 6);
  EXPECT_TRUE(hashes.is_known(0));
  EXPECT_FALSE(hashes.is_known(1));
}

TEST_F(BlockHashesOf, AnEarlyPieceThatIsWrittenTwiceLosesItsBlock) {
  using Span = std::pair<std::size_t, std::size_t>;
  for (const Span& again : {Span{1000, 2000}, Span{1500, 2500}, Span{500, 1001}, Span{0, 1500}}) {
    BlockHashes other(std::ssize(kFile), HashAlgorithm::kXxh3_128);
    HashingWriter to(file, other);
    to.write_at(1000, part(1000, 2000));
    to.write_at(static_cast<std::int64_t>(again.first), part(again.first, again.second));
    to.write_at(0, part(0, kFile.size()));
    EXPECT_FALSE(other.is_known(0)) << again.first;
  }
}

TEST_F(BlockHashesOf, ABlockWithAHoleIsNotKnown) {
  write(0, 1000);
  write(kManifestBlock, kFile.size());
  EXPECT_FALSE(hashes.is_known(0));
  EXPECT_TRUE(hashes.is_known(1));
}

/// Threads take pieces in order, as workers take tiles.
TEST_F(BlockHashesOf, PiecesOfManyThreadsAreThoseOfTheFile) {
  for (int round = 0; round < 20; ++round) {
    BlockHashes each(std::ssize(kFile), HashAlgorithm::kXxh3_128);
    HashingWriter to(file, each);
    std::atomic<std::size_t> next = 0;
    std::vector<std::jthread> threads;
    constexpr std::size_t kPiece = 100'003;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (std::size_t at = next.fetch_add(kPiece); at < kFile.size(); at = next.fetch_add(kPiece)) {
          to.write_at(static_cast<std::int64_t>(at), part(at, std::min(kFile.size(), at + kPiece)));
        }
      });
    }
    threads.clear();
    for (std::int64_t block = 0; block < 3; ++block) {
      const auto begin = static_cast<std::size_t>(block * kManifestBlock);
      ASSERT_TRUE(each.is_known(block));
      ASSERT_EQ(each.hash_of(block), hash_of(part(begin, std::min(kFile.size(), begin + kManifestBlock))));
    }
  }
}

TEST(BlockHashes, AnEmptyFileHasNone) { EXPECT_EQ(BlockHashes(0, HashAlgorithm::kSha256).blocks(), 0); }

}  // namespace
}  // namespace shard

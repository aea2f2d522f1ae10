// Hashes of blocks are those of the file, whatever the pieces in which it was written.
#include "libshard/manifest/block_hashes.h"

#include <gtest/gtest.h>

#include <random>

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

void add(BlockHashes& hashes, std::size_t begin, std::size_t end) {
  hashes.add(static_cast<std::int64_t>(begin), part(begin, end));
}

TEST(BlockHashes, AreThoseOfTheBytesInOrder) {
  BlockHashes hashes(std::ssize(kFile), HashAlgorithm::kXxh3_128);
  for (std::size_t at = 0; at < kFile.size(); at += 300'001) add(hashes, at, std::min(kFile.size(), at + 300'001));
  ASSERT_EQ(hashes.blocks(), 3);
  for (std::int64_t block = 0; block < 3; ++block) {
    ASSERT_TRUE(hashes.is_known(block));
    const auto begin = static_cast<std::size_t>(block * kManifestBlock);
    EXPECT_EQ(hashes.hash_of(block), hash_of(part(begin, std::min(kFile.size(), begin + kManifestBlock))));
  }
}

TEST(BlockHashes, ABlockWhosePiecesComeOutOfOrderIsReadBack) {
  BlockHashes hashes(std::ssize(kFile), HashAlgorithm::kXxh3_128);
  add(hashes, 1000, 2000);
  add(hashes, 0, 1000);
  add(hashes, 2000, kFile.size());
  EXPECT_FALSE(hashes.is_known(0));
  EXPECT_TRUE(hashes.is_known(1));
  EXPECT_TRUE(hashes.is_known(2));
}

TEST(BlockHashes, ABlockThatIsWrittenTwiceIsReadBack) {
  BlockHashes hashes(std::ssize(kFile), HashAlgorithm::kXxh3_128);
  add(hashes, 0, kFile.size());
  ASSERT_TRUE(hashes.is_known(1));
  add(hashes, kManifestBlock + 5, kManifestBlock + 6);
  EXPECT_TRUE(hashes.is_known(0));
  EXPECT_FALSE(hashes.is_known(1));
}

TEST(BlockHashes, ABlockWithAHoleIsReadBack) {
  BlockHashes hashes(std::ssize(kFile), HashAlgorithm::kXxh3_128);
  add(hashes, 0, 1000);
  add(hashes, kManifestBlock, kFile.size());
  EXPECT_FALSE(hashes.is_known(0));
  EXPECT_TRUE(hashes.is_known(1));
}

TEST(BlockHashes, AnEmptyFileHasNone) { EXPECT_EQ(BlockHashes(0, HashAlgorithm::kSha256).blocks(), 0); }

}  // namespace
}  // namespace shard

#include "libshard/core/digest.h"

#include <gtest/gtest.h>

#include <string>

#include "libshard/core/error.h"

namespace shard {
namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::string hex(HashAlgorithm algorithm, std::string_view text) {
  Hasher hasher(algorithm);
  hasher.update(text);
  return hasher.finish_hex();
}

TEST(Crc32, OfTheStandardCheckText) { EXPECT_EQ(crc32(bytes("123456789")), 0xCBF43926U); }

TEST(Crc32, OfNothingIsZero) { EXPECT_EQ(crc32({}), 0U); }

TEST(Crc32, ContinuesFromWhatCameBefore) { EXPECT_EQ(crc32(bytes("56789"), crc32(bytes("1234"))), 0xCBF43926U); }

TEST(Crc32Combine, JoinsTwoHalves) {
  EXPECT_EQ(crc32_combine(crc32(bytes("1234")), crc32(bytes("56789")), 5), 0xCBF43926U);
}

TEST(Crc32c, HasKnownValues) {
  EXPECT_EQ(crc32c(bytes("123456789")), 0xe3069283U);
  EXPECT_EQ(crc32c(bytes("56789"), crc32c(bytes("1234"))), 0xe3069283U);
  EXPECT_EQ(crc32c(bytes(std::string(32, '\0'))), 0x8a9136aaU);  // RFC 3720.
}

TEST(Crc32Combine, WithNothingChangesNothing) { EXPECT_EQ(crc32_combine(0xCBF43926U, crc32({}), 0), 0xCBF43926U); }

TEST(Hasher, Sha256OfAbc) {
  EXPECT_EQ(hex(HashAlgorithm::kSha256, "abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Hasher, Sha256OfNothing) {
  EXPECT_EQ(hex(HashAlgorithm::kSha256, ""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Hasher, Xxh3OfNothingInCanonicalForm) {
  EXPECT_EQ(hex(HashAlgorithm::kXxh3_128, ""), "99aa06d3014798d86001c324468d497f");
}

TEST(Hasher, PiecesHashLikeTheWhole) {
  const std::string text(100000, 'x');
  for (const HashAlgorithm algorithm : {HashAlgorithm::kXxh3_128, HashAlgorithm::kSha256}) {
    Hasher hasher(algorithm);
    hasher.update(std::string_view(text).substr(0, 3));
    hasher.update(bytes(text).subspan(3, 70000));
    hasher.update(std::string_view(text).substr(70003));
    EXPECT_EQ(hasher.finish_hex(), hex(algorithm, text)) << hash_name(algorithm);
  }
}

TEST(Hasher, MovesWithItsState) {
  Hasher first(HashAlgorithm::kSha256);
  first.update("a");
  Hasher second(std::move(first));
  second.update("bc");
  EXPECT_EQ(second.finish_hex(), hex(HashAlgorithm::kSha256, "abc"));
}

TEST(HashAlgorithmName, IsReadAndWritten) {
  for (const char* name : {"xxh3_128", "sha256"}) EXPECT_EQ(hash_name(parse_hash_algorithm(name)), name);
}

TEST(HashAlgorithmName, OfAnotherSortIsTheCallersMistake) {
  try {
    parse_hash_algorithm("md5");
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(e.expected(), "xxh3_128 or sha256");
  }
}

}  // namespace
}  // namespace shard

#include "libshard/stores/object_checks.h"

#include <openssl/evp.h>

#include <array>
#include <cstring>

#include "libshard/core/digest.h"
#include "libshard/core/processor.h"

namespace shard {

namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  ///< Castagnoli's, bits reversed.

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][i] = crc;
  }
  for (std::uint32_t i = 0; i < 256; ++i) {
    for (std::size_t k = 1; k < 8; ++k) tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 255];
  }
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint32_t crc_by_tables(std::span<const std::byte> data, std::uint32_t crc) {
  while (data.size() >= 8) {
    std::uint32_t low = 0, high = 0;
    for (unsigned i = 0; i < 4; ++i) {
      low |= std::to_integer<std::uint32_t>(data[i]) << (8 * i);
      high |= std::to_integer<std::uint32_t>(data[i + 4]) << (8 * i);
    }
    low ^= crc;
    crc = kTables[7][low & 255] ^ kTables[6][(low >> 8) & 255] ^ kTables[5][(low >> 16) & 255] ^ kTables[4][low >> 24] ^
          kTables[3][high & 255] ^ kTables[2][(high >> 8) & 255] ^ kTables[1][(high >> 16) & 255] ^
          kTables[0][high >> 24];
    data = data.subspan(8);
  }
  for (const std::byte byte : data) crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<std::uint32_t>(byte)) & 255];
  return crc;
}

#if defined(__x86_64__)
[[gnu::target("sse4.2,crc32")]] std::uint32_t crc_by_instruction(std::span<const std::byte> data, std::uint32_t crc) {
  std::uint64_t wide = crc;
  while (data.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data(), sizeof word);
    wide = __builtin_ia32_crc32di(wide, word);
    data = data.subspan(8);
  }
  crc = static_cast<std::uint32_t>(wide);
  for (const std::byte byte : data) crc = __builtin_ia32_crc32qi(crc, std::to_integer<unsigned char>(byte));
  return crc;
}
#else
std::uint32_t crc_by_instruction(std::span<const std::byte> data, std::uint32_t crc) {
  return crc_by_tables(data, crc);
}
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc) {
  static const bool kHasInstruction = has_sse42();
  return ~(kHasInstruction ? crc_by_instruction(data, ~crc) : crc_by_tables(data, ~crc));
}

std::string crc32c_text(std::uint32_t crc) {
  const std::array<unsigned char, 4> bytes{static_cast<unsigned char>(crc >> 24), static_cast<unsigned char>(crc >> 16),
                                           static_cast<unsigned char>(crc >> 8), static_cast<unsigned char>(crc)};
  std::array<unsigned char, 16> text{};
  const int count = EVP_EncodeBlock(text.data(), bytes.data(), static_cast<int>(bytes.size()));
  return {reinterpret_cast<const char*>(text.data()), static_cast<std::size_t>(count)};
}

std::string md5_hex(std::span<const std::byte> data) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> out{};
  unsigned bytes = 0;
  if (EVP_Digest(data.data(), data.size(), out.data(), &bytes, EVP_md5(), nullptr) != 1) return {};
  return to_hex(std::as_bytes(std::span(out).first(bytes)));
}

}  // namespace shard

#include "libshard/stores/object_checks.h"

#include <openssl/evp.h>

#include <array>

#include "libshard/core/digest.h"

namespace shard {

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

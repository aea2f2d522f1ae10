#include "libshard/core/hash_table.h"

#include <xxhash.h>

#include <array>

#include "libshard/core/random_bytes.h"

namespace shard {

namespace {

constexpr std::size_t kSecretBytes = 192;  // The size of XXH3's own secret. The kernel returns up to 256 bytes at once.
static_assert(kSecretBytes >= XXH3_SECRET_SIZE_MIN);

struct Secret {
  std::array<std::byte, kSecretBytes> of_texts;
  std::array<std::uint64_t, 2> of_numbers;
};

Secret draw_secret() {
  Secret secret;
  static_assert(sizeof(secret) <= 256);
  draw_random(std::as_writable_bytes(std::span(&secret, 1)));
  return secret;
}

const Secret& secret() {
  static const Secret drawn = draw_secret();
  return drawn;
}

}  // namespace

std::uint64_t keyed_hash(std::span<const std::byte> bytes) {
  return XXH3_64bits_withSecret(bytes.data(), bytes.size(), secret().of_texts.data(), kSecretBytes);
}

KeyedHash::KeyedHash() : added_(secret().of_numbers[0]), factor_(secret().of_numbers[1] | 1) {}

}  // namespace shard

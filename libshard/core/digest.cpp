#include "libshard/core/digest.h"

#include <isa-l/crc.h>
#include <openssl/evp.h>
#include <xxhash.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <new>
#ifdef __x86_64__
#include <immintrin.h>
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // XXH3 with the widest vectors of the processor, 4 times as fast as with SSE2.
#endif
#endif

#include "libshard/core/error.h"
#include "libshard/core/processor.h"

namespace shard {

namespace {

void require(bool ok, const char* what) {
  if (!ok) throw Error(ErrorCode::kResource, what);
}

/// ISA-L's CRC leaves data in the upper halves of AVX registers. Code for SSE, such as libxxhash's and this project's,
/// then runs at a quarter of its speed until they are cleared.
#ifdef __x86_64__
[[gnu::target("avx")]] void zero_upper_halves() { _mm256_zeroupper(); }
void release_upper_halves() {
  if (has_avx()) zero_upper_halves();
}
#else
void release_upper_halves() {}
#endif

}  // namespace

// The CRC-32 of zip and gzip: polynomial 0x04C11DB7 with reflected bits, initial value and final XOR of all ones. ISA-L
// folds the data by carry-less multiplications (Gopal et al., Intel 2009), and gives the same value as zlib.
std::uint32_t crc32(std::span<const std::byte> data, std::uint32_t crc) {
  crc = crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(data.data()), data.size());
  release_upper_halves();
  return crc;
}

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc) {
  constexpr std::size_t kMost = 1 << 30;  // ISA-L takes an int.
  for (std::span<const std::byte> part; !data.empty(); data = data.subspan(part.size())) {
    part = data.first(std::min(kMost, data.size()));
    auto* const bytes = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(part.data()));  // Only read.
    crc = ~crc32_iscsi(bytes, static_cast<int>(part.size()), ~crc);
  }
  release_upper_halves();
  return crc;
}

std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::int64_t bytes_b) {
  // The CRC of A followed by B is crc_a advanced over bytes_b zeros, XOR crc_b. Advancing is a multiplication modulo
  // the polynomial by x^(8 * bytes_b), which zlib computes in O(log bytes_b). Many consecutive runs have one length, so
  // the factor is kept.
  thread_local std::int64_t last_bytes = 0;
  thread_local uLong operation = crc32_combine_gen64(last_bytes);
  if (bytes_b != last_bytes) operation = crc32_combine_gen64(last_bytes = bytes_b);
  return static_cast<std::uint32_t>(crc32_combine_op(crc_a, crc_b, operation));
}

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

HashAlgorithm parse_hash_algorithm(std::string_view name) {
  if (name == "xxh3_128") return HashAlgorithm::kXxh3_128;
  if (name == "sha256") return HashAlgorithm::kSha256;
  throw Error(ErrorCode::kInvalidArgument, "unknown hash algorithm '" + std::string(name) + "'")
      .expected("xxh3_128 or sha256")
      .found(name);
}

std::string_view hash_name(HashAlgorithm algorithm) {
  return algorithm == HashAlgorithm::kSha256 ? "sha256" : "xxh3_128";
}

struct Hasher::Impl {
  struct FreeXxh3 {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  struct FreeEvp {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<XXH3_state_t, FreeXxh3> xxh3;  // One of the two is set.
  std::unique_ptr<EVP_MD_CTX, FreeEvp> sha256;
};

Hasher::Hasher(HashAlgorithm algorithm) : impl_(std::make_unique<Impl>()) {
  if (algorithm == HashAlgorithm::kXxh3_128) {
    impl_->xxh3.reset(XXH3_createState());
    if (!impl_->xxh3) throw std::bad_alloc();
    XXH3_128bits_reset(impl_->xxh3.get());
    return;
  }
  impl_->sha256.reset(EVP_MD_CTX_new());
  if (!impl_->sha256) throw std::bad_alloc();
  require(EVP_DigestInit_ex(impl_->sha256.get(), EVP_sha256(), nullptr) == 1, "OpenSSL cannot start SHA-256");
}

Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;

void Hasher::update(std::span<const std::byte> data) {
  if (data.empty()) return;
  if (impl_->xxh3) {
    XXH3_128bits_update(impl_->xxh3.get(), data.data(), data.size());
  } else {
    require(EVP_DigestUpdate(impl_->sha256.get(), data.data(), data.size()) == 1,
            "OpenSSL cannot update the SHA-256 hash");
  }
}

void Hasher::update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }

std::string Hasher::finish_hex() {
  if (impl_->xxh3) {
    // The canonical form is big-endian, so the text is the same on every processor, and equals that of `xxhsum -H2`.
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(impl_->xxh3.get()));
    return to_hex(std::as_bytes(std::span(canonical.digest)));
  }
  std::array<unsigned char, 32> digest;
  require(EVP_DigestFinal_ex(impl_->sha256.get(), digest.data(), nullptr) == 1, "OpenSSL cannot finish SHA-256");
  return to_hex(std::as_bytes(std::span(digest)));
}

}  // namespace shard

/// \file
/// Hashes that no file can foresee: they depend on a secret that each process draws from the kernel.
///
/// Two keys that were chosen without knowing the secret collide as rarely as random ones. Nothing that is written or
/// printed may depend on these hashes: they differ from run to run.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

namespace shard {

/// XXH3 under a secret of 192 random bytes. \throws Error kResource  the kernel gives no random bytes.
std::uint64_t keyed_hash(std::span<const std::byte> bytes);

/// The hash of HashMap and HashSet: texts, sequences of numbers, single numbers, nodes by address, pairs of the latter.
/// Threads: safe.
class KeyedHash {
 public:
  KeyedHash();

  std::uint64_t operator()(std::string_view text) const { return keyed_hash(std::as_bytes(std::span(text))); }
  std::uint64_t operator()(std::span<const std::int64_t> numbers) const { return keyed_hash(std::as_bytes(numbers)); }
  std::uint64_t operator()(std::integral auto number) const { return mix(static_cast<std::uint64_t>(number)); }
  template <class Node>
  requires(!std::same_as<std::remove_cv_t<Node>, char>) std::uint64_t operator()(Node* node) const {
    return mix(reinterpret_cast<std::uintptr_t>(node));
  }
  template <class First, class Second>
  std::uint64_t operator()(const std::pair<First, Second>& pair) const {
    return mix((*this)(pair.first) ^ ((*this)(pair.second) << 1));
  }

 private:
  /// A folded multiplication: both halves of the product, as all bits of the number reach them together.
  std::uint64_t mix(std::uint64_t number) const {
    __extension__ using Product = unsigned __int128;
    const Product product = static_cast<Product>(number ^ added_) * factor_;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }

  std::uint64_t added_, factor_;  ///< Of the process's secret; the factor is odd.
};

}  // namespace shard

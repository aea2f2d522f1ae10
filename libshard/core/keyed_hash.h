/// \file Hashes that no file can predict: they depend on a secret that each process obtains from the kernel.
///
/// Two keys that were chosen without knowing the secret collide as rarely as random ones. No output may depend on these
/// hashes, because they differ from run to run.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

namespace shard {

/// XXH3 with a secret of 192 random bytes. \throws Error kResource  the kernel returns no random bytes.
std::uint64_t keyed_hash(std::span<const std::byte> bytes);

/// The hash of HashMap and HashSet: for texts, sequences of numbers, single numbers, nodes by address, and pairs of the
/// latter. Threads: safe.
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
  /// A folded multiplication. It uses both halves of the product, because all bits of the number affect only the two
  /// together.
  std::uint64_t mix(std::uint64_t number) const {
    __extension__ using Product = unsigned __int128;
    const Product product = static_cast<Product>(number ^ added_) * factor_;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }

  std::uint64_t added_, factor_;  ///< Derived from the process's secret. The factor is odd.
};

}  // namespace shard

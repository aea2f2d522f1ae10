/// \file The project's hash tables, for keys that a file may choose: texts, numbers, dims, nodes.
///
/// Their hash is keyed (KeyedHash), so that no choice of keys can make them slow. They are iterated in order of
/// insertion, so that results do not depend on the key. std::unordered_map and similar types have neither property. A
/// test (scripts/check_includes.py) refuses them.
#pragma once

#include <bit>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace shard {

// Hashes that no file can predict, because they depend on a secret that each process obtains from the kernel. Two keys
// that were chosen without knowing the secret collide as rarely as random ones. No output may depend on these hashes,
// because they differ from run to run.

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

/// Finds entries by their hashes. The entries themselves are stored elsewhere, and are numbered in order of insertion.
///
/// Method: open addressing with linear probing, at most half full. A slot stores 32 bits of its entry's hash. They
/// determine the entry's slot when the table grows, and avoid nearly all comparisons with different entries.
class HashSlots {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  /// The entry with that hash for which `is_equal(entry)` is true, or kNone.
  template <class IsEqual>
  std::uint32_t find(std::uint64_t hash, IsEqual&& is_equal) const {
    return slots_.empty() ? kNone : slots_[place_of(static_cast<std::uint32_t>(hash), is_equal)].entry;
  }

  /// Does the same as find. If there is none, adds entry number `size()` and returns it. \pre size() < kNone - 1
  template <class IsEqual>
  std::uint32_t find_or_add(std::uint64_t hash, IsEqual&& is_equal) {
    if (2 * (std::size_t{count_} + 1) > slots_.size()) resize(slots_.empty() ? 16 : 2 * slots_.size());
    const auto tag = static_cast<std::uint32_t>(hash);
    Slot& slot = slots_[place_of(tag, is_equal)];
    if (slot.entry == kNone) slot = {tag, count_++};
    return slot.entry;
  }

  std::size_t size() const { return count_; }
  void reserve(std::size_t count) {
    if (2 * count > slots_.size()) resize(std::bit_ceil(2 * count));
  }
  void clear() {
    slots_.clear();
    count_ = 0;
  }

 private:
  struct Slot {
    std::uint32_t tag = 0, entry = kNone;
  };

  /// The slot of the equal entry, or the empty slot for it.
  template <class IsEqual>
  std::size_t place_of(std::uint32_t tag, IsEqual&& is_equal) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t place = tag & mask;
    while (slots_[place].entry != kNone && (slots_[place].tag != tag || !is_equal(slots_[place].entry))) {
      place = (place + 1) & mask;
    }
    return place;
  }

  void resize(std::size_t slots) {
    assert(slots - 1 <= UINT32_MAX);  // With more slots, a tag could not identify every slot.
    std::vector<Slot> old(slots);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.entry != kNone) slots_[place_of(slot.tag, [](std::uint32_t) { return false; })] = slot;
    }
  }

  std::vector<Slot> slots_;  ///< The number of slots is a power of two, or 0.
  std::uint32_t count_ = 0;
};

/// A map from which entries are never removed individually. Keys can be looked up by any type that `Hash` accepts and
/// that is comparable with a key, for example texts by string_view. Pointers and references to values are valid until
/// the next insertion. \pre fewer than 2^31 entries
template <class Key, class Mapped, class Hash = KeyedHash>
class HashMap {
 public:
  struct Entry {
    Key key;
    Mapped value;
  };
  struct Inserted {
    Mapped& value;
    bool is_new;
  };

  /// Null if there is none.
  const Mapped* find(const auto& key) const {
    const std::uint32_t entry = slots_.find(hash_(key), is_equal(key));
    return entry == HashSlots::kNone ? nullptr : &entries_[entry].value;
  }
  Mapped* find(const auto& key) { return const_cast<Mapped*>(std::as_const(*this).find(key)); }
  bool contains(const auto& key) const { return find(key) != nullptr; }

  /// The value of `key`. If there is none, first constructs it from `arguments`.
  template <class Looked, class... Arguments>
  Inserted try_emplace(Looked&& key, Arguments&&... arguments) {
    const std::uint32_t entry = slots_.find_or_add(hash_(key), is_equal(key));
    const bool is_new = entry == entries_.size();
    if (is_new) entries_.push_back({Key(std::forward<Looked>(key)), Mapped(std::forward<Arguments>(arguments)...)});
    return {entries_[entry].value, is_new};
  }
  template <class Looked>
  Mapped& operator[](Looked&& key) {
    return try_emplace(std::forward<Looked>(key)).value;
  }

  /// In order of insertion.
  std::span<const Entry> entries() const { return entries_; }
  /// The caller must not change keys.
  std::span<Entry> entries() { return entries_; }
  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  void reserve(std::size_t count) {
    slots_.reserve(count);
    entries_.reserve(count);
  }
  void clear() {
    slots_.clear();
    entries_.clear();
  }

 private:
  auto is_equal(const auto& key) const {
    return [this, &key](std::uint32_t entry) { return entries_[entry].key == key; };
  }

  Hash hash_;
  HashSlots slots_;
  std::vector<Entry> entries_;
};

/// A set. \pre fewer than 2^31 keys
template <class Key>
class HashSet {
 public:
  /// \returns true if `key` was not in it.
  bool insert(const auto& key) {
    if (slots_.find_or_add(hash_(key), is_equal(key)) < keys_.size()) return false;
    keys_.emplace_back(key);
    return true;
  }
  bool contains(const auto& key) const { return slots_.find(hash_(key), is_equal(key)) != HashSlots::kNone; }
  /// In order of insertion.
  std::span<const Key> keys() const { return keys_; }
  std::size_t size() const { return keys_.size(); }

 private:
  auto is_equal(const auto& key) const {
    return [this, &key](std::uint32_t entry) { return keys_[entry] == key; };
  }

  KeyedHash hash_;
  HashSlots slots_;
  std::vector<Key> keys_;
};

}  // namespace shard

/// \file
/// Path: the way from a checkpoint's root to a leaf of its container tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

namespace shard {

/// One step: a dict key or a list index.
struct PathPart {
  union {
    const char* characters = nullptr;  ///< The key's text, `size` bytes.
    std::int64_t index;                ///< If is_index: a list index or an integer dict key.
  };
  std::uint64_t size : 62 = 0;
  bool is_index : 1 = false;
  bool is_int_key : 1 = false;  ///< If is_index: an integer dict key, not the index of a list or tuple.

  static PathPart of_key(std::string_view key);  ///< A part that refers to `key` without a copy.
  static PathPart of_index(std::int64_t index);
  static PathPart of_int_key(std::int64_t key);

  std::string_view key() const { return is_index ? std::string_view() : std::string_view(characters, size); }
  /// The key, or the digits of the index.
  std::string text() const { return is_index ? std::to_string(index) : std::string(key()); }
  /// An integer key equals the index with the same number, because both have the same text in names.
  friend bool operator==(const PathPart& a, const PathPart& b) {
    return a.is_index == b.is_index && (a.is_index ? a.index == b.index : a.key() == b.key());
  }
};
static_assert(sizeof(PathPart) == 16);

/// The parts of a leaf's container, which all its leaves share, and the last part. It has 24 bytes and is cheap to
/// copy, so that the depth of a list of a million numbers is stored only once. A range of PathPart. Ownership: a view
/// of the container's parts and of keys, which are usually in an Arena. Default: no parts.
class Path {
 public:
  static constexpr std::size_t kMaxParts = (1 << 24) - 1;

  Path() = default;
  /// \pre at most kMaxParts
  explicit Path(std::span<const PathPart> parts);
  Path(std::span<const PathPart> container, const PathPart& last);

  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  /// \pre i < size()
  PathPart operator[](std::size_t i) const { return i + 1 < count_ ? container_[i] : back(); }
  PathPart back() const;  ///< \pre not empty
  /// The path without the first `n` parts. \pre n < size()
  Path without_first(std::size_t n) const;

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = PathPart;
    using difference_type = std::ptrdiff_t;
    using pointer = const PathPart*;
    using reference = PathPart;

    Iterator() = default;
    Iterator(const Path* path, std::size_t at) : path_(path), at_(at) {}
    PathPart operator*() const { return (*path_)[at_]; }
    Iterator& operator++() { return ++at_, *this; }
    Iterator operator++(int) { return {path_, at_++}; }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.at_ == b.at_; }

   private:
    const Path* path_ = nullptr;
    std::size_t at_ = 0;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, count_}; }

 private:
  const PathPart* container_ = nullptr;
  union {
    const char* characters_ = nullptr;
    std::int64_t index_;
  };
  std::uint64_t size_ : 38 = 0;  ///< The size of the last part's key.
  std::uint64_t count_ : 24 = 0;
  bool is_index_ : 1 = false;
  bool is_int_key_ : 1 = false;
};
static_assert(sizeof(Path) == 24);

bool operator==(const Path& a, const Path& b);

}  // namespace shard

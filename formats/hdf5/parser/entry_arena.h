/// \file
/// EntryArena: the memory to which an entry's views point. Inside formats/hdf5/parser only.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "formats/hdf5/library/handle.h"

namespace shard::hdf5 {

/// Memory is valid until clear(), which is called before the next entry is read.
class EntryArena {
 public:
  /// `limit_bytes` is the largest size of one entry.
  explicit EntryArena(std::int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Memory for `count` items of `bytes` bytes. \throws LibraryError  it exceeds the limit
  std::string& room(std::int64_t count, std::int64_t bytes) {
    std::int64_t wanted = 0;
    if (__builtin_mul_overflow(count, bytes, &wanted) || wanted > limit_bytes_ - held_bytes_) {
      throw_malformed(std::to_string(count) + " elements of " + std::to_string(bytes) +
                      " bytes do not fit in a file of this size");
    }
    held_bytes_ += wanted;
    return texts_.emplace_back(static_cast<std::size_t>(wanted), '\0');
  }
  std::string_view text(std::string_view text) { return room(1, static_cast<std::int64_t>(text.size())).assign(text); }
  void clear() {
    texts_.clear();
    held_bytes_ = 0;
  }

 private:
  std::int64_t limit_bytes_, held_bytes_ = 0;
  std::deque<std::string> texts_;
};

}  // namespace shard::hdf5

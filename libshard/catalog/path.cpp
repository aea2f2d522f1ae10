#include "libshard/catalog/path.h"

#include <algorithm>
#include <cassert>

namespace shard {

namespace {

constexpr std::uint64_t low_bits(int count) { return (std::uint64_t{1} << count) - 1; }

}  // namespace

PathPart PathPart::of_key(std::string_view key) {
  PathPart part;
  part.characters = key.data();
  part.size = key.size() & low_bits(62);
  return part;
}

PathPart PathPart::of_index(std::int64_t index) {
  PathPart part;
  part.index = index;
  part.is_index = true;
  return part;
}

PathPart PathPart::of_int_key(std::int64_t key) {
  PathPart part = of_index(key);
  part.is_int_key = true;
  return part;
}

Path::Path(std::span<const PathPart> parts) {
  if (!parts.empty()) *this = Path(parts.first(parts.size() - 1), parts.back());
}

Path::Path(std::span<const PathPart> container, const PathPart& last)
    : container_(container.data()),
      size_(last.size & low_bits(38)),
      count_((container.size() + 1) & low_bits(24)),
      is_index_(last.is_index),
      is_int_key_(last.is_int_key) {
  assert(container.size() < kMaxParts && last.size <= low_bits(38));
  if (last.is_index) {
    index_ = last.index;
  } else {
    characters_ = last.characters;
  }
}

PathPart Path::back() const {
  if (is_index_) return is_int_key_ ? PathPart::of_int_key(index_) : PathPart::of_index(index_);
  return PathPart::of_key({characters_, size_});
}

Path Path::without_first(std::size_t n) const {
  assert(n < count_);
  Path rest = *this;
  rest.container_ += n;
  rest.count_ = (count_ - n) & low_bits(24);
  return rest;
}

bool operator==(const Path& a, const Path& b) { return std::ranges::equal(a, b); }

}  // namespace shard

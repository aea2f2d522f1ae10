#include "libshard/catalog/name_order.h"

#include <algorithm>
#include <cstring>

namespace shard {

namespace {

/// A name in a run. Sorting whole entries, or indices into them, causes cache misses.
struct NameKey {
  std::string_view rest;   ///< The name without the bytes by which the run is sorted already.
  std::uint64_t head = 0;  ///< The first bytes of the rest, as a number that compares like them.
  std::uint32_t index = 0;

  /// The number of bytes in `head`. It orders names that end in NUL bytes.
  std::size_t head_bytes() const { return std::min(rest.size(), sizeof head); }
};

/// An object, because the sort calls a function through a pointer.
constexpr auto kHeadLess = [](const NameKey& a, const NameKey& b) {
  return a.head != b.head ? a.head < b.head : a.head_bytes() < b.head_bytes();
};

std::uint64_t head_of(std::string_view name) {
  std::uint64_t head = 0;
  std::memcpy(&head, name.data(), std::min(name.size(), sizeof head));
  return __builtin_bswap64(head);  // The machine is little-endian, and the first byte must count most.
}

std::size_t common_prefix(std::span<const NameKey> keys) {
  std::string_view common = keys.front().rest;
  for (const NameKey& key : keys) {
    const auto differ = std::ranges::mismatch(common, key.rest).in1;
    common = common.substr(0, static_cast<std::size_t>(differ - common.begin()));
  }
  return common.size();
}

/// Sorts a run by the eight bytes after its common prefix.
void sort_by_head(std::span<NameKey> run) {
  const std::size_t common = common_prefix(run);
  for (NameKey& key : run) {
    key.rest.remove_prefix(common);
    key.head = head_of(key.rest);
  }
  if (!std::ranges::is_sorted(run, kHeadLess)) std::ranges::sort(run, kHeadLess);
}

}  // namespace

std::vector<std::uint32_t> order_of_names(std::span<const std::string_view> names,
                                          const std::function<bool(std::uint32_t, std::uint32_t)>& tie_less) {
  std::vector<NameKey> keys;
  keys.reserve(names.size());
  for (const std::string_view name : names)
    keys.push_back({.rest = name, .index = static_cast<std::uint32_t>(keys.size())});
  const auto index_less = [&](const NameKey& a, const NameKey& b) {
    return tie_less(a.index, b.index) || (!tie_less(b.index, a.index) && a.index < b.index);
  };
  std::vector<std::span<NameKey>> runs{keys};
  while (!runs.empty()) {
    const std::span<NameKey> run = runs.back();
    runs.pop_back();
    if (run.empty()) continue;
    sort_by_head(run);
    for (auto begin = run.begin(); begin != run.end();) {
      const auto end = std::find_if(begin, run.end(), [&](const NameKey& key) { return kHeadLess(*begin, key); });
      const std::span<NameKey> equal(begin, end);
      begin = end;
      if (equal.size() < 2) continue;
      if (equal.front().head_bytes() < sizeof(NameKey::head)) {  // Here the names end.
        std::ranges::sort(equal, index_less);
        continue;
      }
      for (NameKey& key : equal) key.rest.remove_prefix(sizeof(NameKey::head));
      runs.push_back(equal);
    }
  }
  std::vector<std::uint32_t> order;
  order.reserve(keys.size());
  for (const NameKey& key : keys) order.push_back(key.index);
  return order;
}

}  // namespace shard

#include "libshard/catalog/name_order.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "libshard/core/parallel.h"

namespace shard {

namespace {

/// A name in a run. Sorting whole entries, or indices into them, causes cache misses.
struct NameKey {
  std::uint64_t head;        ///< The next bytes of the name, as a number that compares like them.
  std::uint32_t head_bytes;  ///< How many of these bytes the name has. It orders names that end in NUL bytes.
  std::uint32_t index;
};

/// Names that share their first `depth` bytes.
struct NameRun {
  std::span<NameKey> keys;
  std::size_t depth = 0;
};

constexpr int kTopShift = 56;  ///< The position of the first byte in a head.

/// An object, because the sort calls a function through a pointer.
constexpr auto kHeadLess = [](const NameKey& a, const NameKey& b) {
  return a.head != b.head ? a.head < b.head : a.head_bytes < b.head_bytes;
};

/// Sorts keys whose heads are equal before the byte at `shift`: byte by byte in place, and few keys by comparison.
void sort_heads(std::span<NameKey> keys, int shift) {
  constexpr std::size_t kFew = 128;
  if (std::ranges::is_sorted(keys, kHeadLess)) return;
  if (keys.size() <= kFew || shift < 0) {
    std::ranges::sort(keys, kHeadLess);
    return;
  }
  const auto byte_of = [shift](const NameKey& key) { return static_cast<std::uint8_t>(key.head >> shift); };
  std::array<std::size_t, 257> begin{};
  for (const NameKey& key : keys) ++begin[byte_of(key) + 1U];
  for (std::size_t byte = 0; byte < 256; ++byte) begin[byte + 1] += begin[byte];
  std::array<std::size_t, 257> next = begin;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    while (next[byte] < begin[byte + 1]) {
      NameKey& key = keys[next[byte]];
      std::swap(key, keys[next[byte_of(key)]++]);
    }
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    sort_heads(keys.subspan(begin[byte], begin[byte + 1] - begin[byte]), shift - 8);
  }
}

class NameOrder {
 public:
  NameOrder(std::span<const std::string_view> names, const NameTieLess& tie_less)
      : names_(names), tie_less_(tie_less), keys_(names.size()) {
    for (std::uint32_t i = 0; i < keys_.size(); ++i) keys_[i].index = i;
  }

  std::vector<std::uint32_t> run(int threads) {
    constexpr std::size_t kWorthThreads = 1 << 16;
    const std::size_t least = keys_.size() < kWorthThreads ? 0 : keys_.size() / 16;
    std::vector<NameRun> small;  // They are sorted by all threads.
    sort({keys_}, [&](const NameRun& run) {
      if (run.keys.size() >= least) return true;
      small.push_back(run);
      return false;
    });
    for_each_index(small.size(), threads, [&](std::size_t i) { sort(small[i], [](const NameRun&) { return true; }); });
    std::vector<std::uint32_t> order;
    order.reserve(keys_.size());
    for (const NameKey& key : keys_) order.push_back(key.index);
    return order;
  }

 private:
  std::string_view rest(const NameKey& key, std::size_t depth) const { return names_[key.index].substr(depth); }

  /// Sorts the run, and then the runs of equal heads that are in it, if `goes_on` returns true for them.
  template <class GoesOn>
  void sort(const NameRun& all, const GoesOn& goes_on) {
    std::vector<NameRun> runs{all};
    while (!runs.empty()) {
      NameRun run = runs.back();
      runs.pop_back();
      if (run.keys.size() < 2) continue;
      run.depth += common_prefix(run);
      for (NameKey& key : run.keys) set_head(key, run.depth);
      sort_heads(run.keys, kTopShift);
      for (auto begin = run.keys.begin(); begin != run.keys.end();) {
        const auto end =
            std::find_if(begin, run.keys.end(), [&](const NameKey& key) { return kHeadLess(*begin, key); });
        const std::span<NameKey> equal(begin, end);
        begin = end;
        if (equal.size() < 2) continue;
        if (equal.front().head_bytes < sizeof(NameKey::head)) {  // Here the names end.
          sort_ties(equal);
        } else if (const NameRun next{equal, run.depth + sizeof(NameKey::head)}; goes_on(next)) {
          runs.push_back(next);
        }
      }
    }
  }

  std::size_t common_prefix(const NameRun& run) const {
    std::string_view common = rest(run.keys.front(), run.depth);
    for (const NameKey& key : run.keys) {
      const auto differ = std::ranges::mismatch(common, rest(key, run.depth)).in1;
      common = common.substr(0, static_cast<std::size_t>(differ - common.begin()));
    }
    return common.size();
  }

  void set_head(NameKey& key, std::size_t depth) const {
    const std::string_view name = rest(key, depth);
    key.head = 0;
    key.head_bytes = static_cast<std::uint32_t>(std::min(name.size(), sizeof key.head));
    if (!name.empty()) std::memcpy(&key.head, name.data(), key.head_bytes);
    key.head = __builtin_bswap64(key.head);  // The machine is little-endian, and the first byte must count most.
  }

  void sort_ties(std::span<NameKey> equal) const {
    std::ranges::sort(equal, [this](const NameKey& a, const NameKey& b) {
      return tie_less_(a.index, b.index) || (!tie_less_(b.index, a.index) && a.index < b.index);
    });
  }

  std::span<const std::string_view> names_;
  const NameTieLess& tie_less_;
  std::vector<NameKey> keys_;
};

}  // namespace

std::vector<std::uint32_t> order_of_names(std::span<const std::string_view> names, const NameTieLess& tie_less,
                                          int threads) {
  return NameOrder(names, tie_less).run(threads);
}

}  // namespace shard

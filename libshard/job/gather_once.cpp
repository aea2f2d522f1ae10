#include "libshard/job/gather_once.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "libshard/core/digest.h"

namespace shard {

namespace {

/// What ranks say of their bytes before they send them.
struct Head {
  std::array<char, 32> hash{};
  std::int64_t bytes = 0;
};

Head head_of(const Bytes& piece) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(piece);
  Head head;
  std::ranges::copy(hasher.finish_hex(), head.hash.begin());
  head.bytes = std::ssize(piece);
  return head;
}

/// The ranks by what they have: groups of rising ranks, in the order of their first ones.
std::vector<std::vector<int>> ranks_alike(std::span<const Head> heads) {
  std::vector<std::vector<int>> groups;
  std::map<std::array<char, 32>, std::size_t> known;
  for (std::size_t rank = 0; rank < heads.size(); ++rank) {
    const auto [group, is_new] = known.try_emplace(heads[rank].hash, groups.size());
    if (is_new) groups.emplace_back();
    groups[group->second].push_back(static_cast<int>(rank));
  }
  return groups;
}

/// Sends `own` of the first rank of each group to all others. \returns by group.
std::vector<Bytes> exchange_once(Group& group, const Bytes& own, std::span<const Head> heads,
                                 std::span<const std::vector<int>> alike) {
  std::vector<std::span<const std::byte>> to(heads.size());
  std::vector<std::span<std::byte>> from(heads.size());
  std::vector<Bytes> all;
  for (const std::vector<int>& ranks : alike) {
    const int first = ranks.front();
    Bytes& piece = all.emplace_back(static_cast<std::size_t>(heads[static_cast<std::size_t>(first)].bytes));
    if (first != group.rank()) {
      from[static_cast<std::size_t>(first)] = piece;
      continue;
    }
    piece = own;
    std::ranges::fill(to, std::span<const std::byte>(own));
    to[static_cast<std::size_t>(first)] = {};
  }
  group.exchange(to, from);
  return all;
}

}  // namespace

GatheredOnce all_gather_once(Group& group, const Bytes& own) {
  const Head head = head_of(own);
  std::vector<Head> heads(static_cast<std::size_t>(group.size()));
  group.all_gather(std::as_bytes(std::span(&head, 1)), std::as_writable_bytes(std::span(heads)));
  GatheredOnce all;
  all.ranks = ranks_alike(heads);
  all.pieces = exchange_once(group, own, heads, all.ranks);
  return all;
}

}  // namespace shard

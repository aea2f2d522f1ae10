#include "libshard/job/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "libshard/core/checked.h"
#include "libshard/job/exchange_schedule.h"
#include "libshard/ranks/collective_step.h"
#include "libshard/ranks/wire.h"

namespace shard {

namespace {

/// Timeouts of the ranks that wait for rank 0 to clean up after a failure, and of rank 0 when it notifies them.
constexpr std::chrono::milliseconds kCleanUp{5000}, kTellCleanUp{100};

}  // namespace

std::int64_t Topology::copy_memory(std::int64_t rank_bytes) const {
  return exchanges() ? exchange_unit(rank_bytes) : rank_bytes;
}

std::int64_t Topology::rank_memory(std::int64_t copy_bytes) const {
  return exchanges() ? kExchangeParts * copy_bytes : copy_bytes;
}

std::string Topology::text(int ranks) const {
  return fmt::format("{} {} {} {}", ranks, by_owner, peer_store != nullptr, own_places);
}

Bytes OutputPlaces::share_token(Group& group, const Bytes& own) const {
  if (is_one) return broadcast(group, own, 0);
  return all_gather(group, own)[static_cast<std::size_t>(root(group.rank()))];
}

/// Waits until the ranks that own outputs have removed them. If there is one output, rank 0 only notifies the others
/// and needs no answer.
void OutputPlaces::await_clean_up(Group& group) const {
  std::byte done{};
  const bool only_tells = is_one && is_root(group.rank());
  group.set_timeout(only_tells ? kTellCleanUp : kCleanUp);
  is_one ? group.broadcast({&done, 1}, 0) : group.barrier();
}

OutputPlaces one_place(int ranks) { return {std::vector<int>(static_cast<std::size_t>(ranks), 0)}; }

/// Ranks with the same destination share one output. The lowest of them is its root.
OutputPlaces find_places(Group& group, const OutputStore& store, const std::stop_token& stop) {
  std::string own;
  collective_step(group, {.stop = stop}, [&](const std::stop_token&) { own = store.place(); });
  std::map<std::string, int> first;
  OutputPlaces places{.roots = {}, .is_one = false};
  for (const Bytes& place : all_gather(group, to_bytes(own))) {
    const int rank = static_cast<int>(places.roots.size());
    places.roots.push_back(first.try_emplace(std::string(as_text(place)), rank).first->second);
  }
  return places;
}

std::vector<PlaceSpace> find_space(Group& group, const OutputPlaces& places, const std::vector<File>& files,
                                   const std::vector<int>& owners, std::int64_t own_free_bytes) {
  const std::vector<std::int64_t> free = all_gather_values(group, own_free_bytes);
  std::map<int, PlaceSpace> by_root;
  for (int rank = 0; rank < group.size(); ++rank) {
    const int root = places.root(rank);
    by_root[root] = {root, 0, free[static_cast<std::size_t>(root)]};
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::int64_t& needed = by_root.at(places.root(owners[i])).needed_bytes;
    needed = checked_add(needed, files[i].bytes);
  }
  std::vector<PlaceSpace> all;
  for (const auto& [root, space] : by_root) all.push_back(space);
  return all;
}

namespace {

/// floor(i * ranks / of).
int share_of(std::int64_t i, std::int64_t of, int ranks) { return static_cast<int>(i * ranks / of); }

std::vector<bool> hold_storages(const Catalog& catalog) {
  std::vector<bool> hold(catalog.files.size());
  for (const Storage& storage : catalog.storages) hold[storage.file] = true;
  return hold;
}

}  // namespace

/// Files of ranks are distributed by their rank, files of whole tensors by their number, in consecutive shares. Files
/// without storages (metadata, indexes) belong to rank 0.
std::vector<int> file_owners(const Catalog& catalog, int ranks) {
  const std::vector<bool> hold = hold_storages(catalog);
  std::int64_t of_ranks = catalog.world_size.value_or(0), whole = 0;
  for (std::size_t i = 0; i < catalog.files.size(); ++i) {
    const int rank = catalog.files[i].rank;
    of_ranks = std::max<std::int64_t>(of_ranks, rank + 1);
    if (rank < 0 && hold[i]) ++whole;
  }
  std::vector<int> owners(catalog.files.size());
  std::int64_t next = 0;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const int rank = catalog.files[i].rank;
    if (rank >= 0) {
      owners[i] = share_of(rank, of_ranks, ranks);
    } else if (hold[i]) {
      owners[i] = share_of(next++, whole, ranks);
    }
  }
  return owners;
}

}  // namespace shard

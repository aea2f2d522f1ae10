#include "libshard/job/file_owners.h"

#include <algorithm>
#include <cstdint>

namespace shard {

namespace {

/// floor(i * ranks / of).
int share_of(std::int64_t i, std::int64_t of, int ranks) { return static_cast<int>(i * ranks / of); }

std::vector<bool> hold_storages(const Catalog& catalog) {
  std::vector<bool> hold(catalog.files.size());
  for (const Storage& storage : catalog.storages) hold[storage.file] = true;
  return hold;
}

}  // namespace

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

#include "libshard/job/file_shares.h"

#include <algorithm>
#include <numeric>

#include "libshard/core/checked.h"

namespace shard {

namespace {

/// The storages of a file by offset; nothing if one is not placed.
std::vector<std::uint32_t> storages_in_order(const Catalog& target, std::uint32_t file) {
  std::vector<std::uint32_t> storages;
  for (std::uint32_t i = 0; i < target.storages.size(); ++i) {
    if (target.storages[i].file == file) storages.push_back(i);
  }
  const auto begin = [&](std::uint32_t i) { return target.storages[i].offset; };
  std::ranges::stable_sort(storages, {}, begin);
  if (!storages.empty() && begin(storages.front()) < 0) storages.clear();
  return storages;
}

/// Divides one file at the begins of storages, and its bytes near them.
void share_file(const Catalog& target, std::uint32_t file, int ranks, std::int64_t step, FileShares& shares) {
  const std::vector<std::uint32_t> storages = storages_in_order(target, file);
  if (storages.empty()) return;
  const std::int64_t bytes = target.files[file].bytes;
  const auto begin_of = [&](std::uint32_t i) { return target.storages[i].offset; };
  std::vector<std::int64_t> begins{0};
  auto next = storages.begin();
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t wanted = begin_of_share(bytes, rank + 1, ranks);
    const auto first = next;
    next = rank + 1 == ranks ? storages.end() : std::ranges::lower_bound(first, storages.end(), wanted, {}, begin_of);
    for (auto each = first; each != next; ++each) shares.storage_ranks[*each] = rank;
    const std::int64_t end = next == storages.end() ? bytes : (begin_of(*next) + step / 2) / step * step;
    begins.push_back(std::clamp(end, begins.back(), bytes));
  }
  begins.back() = bytes;
  shares.of_files[file] = std::move(begins);
}

}  // namespace

ByteRange FileShares::of(std::uint32_t file, int rank) const {
  if (!is_shared(file)) return {};
  const auto at = static_cast<std::size_t>(rank);
  return {of_files[file][at], of_files[file][at + 1]};
}

int FileShares::rank_at(std::uint32_t file, std::int64_t offset) const {
  const std::vector<std::int64_t>& begins = of_files[file];
  return static_cast<int>(std::ranges::upper_bound(begins, offset) - begins.begin()) - 1;
}

FileShares share_files(const Catalog& target, const std::vector<int>& owners, int ranks,
                       const std::function<std::int64_t(std::int64_t bytes)>& step) {
  FileShares shares;
  shares.of_files.resize(target.files.size());
  std::vector<std::uint8_t> has_data(target.files.size());
  for (const Storage& storage : target.storages) {
    shares.storage_ranks.push_back(owners[storage.file]);
    has_data[storage.file] = 1;
  }
  if (std::accumulate(has_data.begin(), has_data.end(), 0) >= ranks) return {};
  for (std::uint32_t file = 0; file < target.files.size(); ++file) {
    const std::int64_t bytes = target.files[file].bytes, part = step(bytes);
    const bool is_large = part > 0 && bytes >= 2 * part;
    const bool is_of_one_rank = target.world_size && target.files[file].rank >= 0;
    if (is_large && !is_of_one_rank) share_file(target, file, ranks, part, shares);
  }
  const bool has_shares = std::ranges::any_of(shares.of_files, [](const auto& begins) { return !begins.empty(); });
  return has_shares ? shares : FileShares{};
}

void SharedFile::write_at(std::int64_t offset_bytes, std::span<const std::byte> data) {
  const std::int64_t end = offset_bytes + std::ssize(data);
  const std::int64_t own_begin = std::clamp(share_.begin, offset_bytes, end);
  const std::int64_t own_end = std::clamp(share_.end, own_begin, end);
  const auto part = [&](std::int64_t from, std::int64_t to) {
    return data.subspan(static_cast<std::size_t>(from - offset_bytes), static_cast<std::size_t>(to - from));
  };
  keep(offset_bytes, part(offset_bytes, own_begin));
  if (own_begin < own_end) file_->write_at(own_begin, part(own_begin, own_end));
  keep(own_end, part(own_end, end));
}

void SharedFile::allocate(std::int64_t bytes) {
  if (file_ != nullptr) file_->allocate(bytes);
}

void SharedFile::keep(std::int64_t offset, std::span<const std::byte> data) {
  if (data.empty()) return;
  const std::scoped_lock lock(mutex_);
  kept_.emplace_back(offset, std::vector<std::byte>(data.begin(), data.end()));
}

std::vector<SharedFile::Kept> SharedFile::take_kept() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(kept_, {});
}

}  // namespace shard

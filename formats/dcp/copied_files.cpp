#include "formats/dcp/copied_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <functional>
#include <map>

namespace shard::dcp {

namespace {

constexpr std::int64_t kBlock = 1 << 16;

/// What is the same in a file and its copy.
struct Box {
  std::int64_t offset, length;
  std::uint32_t tensor, crc;
  friend auto operator<=>(const Box&, const Box&) = default;
};

struct FileBoxes {
  std::uint32_t file = 0;
  std::vector<Box> boxes;                                 ///< In order.
  std::vector<std::pair<std::uint32_t, DType>> storages;  ///< Of the boxes.
};

std::vector<FileBoxes> boxes_by_file(const Catalog& catalog, const ItemStore& items,
                                     std::span<const std::uint32_t> tensors) {
  std::map<std::uint32_t, FileBoxes> files;
  for (const std::uint32_t t : tensors) {
    if (catalog.tensors[t].chunk_count < 2) continue;  // Only one file has it.
    for (const Chunk& chunk : catalog.chunks_of(catalog.tensors[t])) {
      const std::uint32_t index = catalog.stored[chunk.stored].storage;
      const Storage& storage = catalog.storages[index];
      if (!items.is_item(index) || storage.offset < 0 || !storage.crc32) continue;
      FileBoxes& file = files[storage.file];
      if (!file.storages.empty() && file.storages.back().first == index) continue;  // One more box of a run.
      file.boxes.push_back({items.item(index).offset, items.item(index).length, t, *storage.crc32});
      file.storages.emplace_back(index, catalog.tensors[t].dtype);
    }
  }
  std::vector<FileBoxes> all;
  for (auto& [file, found] : files) {
    found.file = file;
    std::ranges::sort(found.boxes);
    all.push_back(std::move(found));
  }
  return all;
}

/// Whether a storage holds one value over and over, as far as its first block tells.
bool is_constant(const Catalog& catalog, const ItemStore& items, std::uint32_t index, DType dtype) {
  const Storage& storage = catalog.storages[index];
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(storage.bytes, kBlock)));
  items.bytes_of(index)->read_at(storage.offset, block);
  const auto element = static_cast<std::size_t>(dtype_block(dtype).bytes);
  for (std::size_t i = element; i < block.size(); ++i) {
    if (block[i] != block[i - element]) return false;
  }
  return true;
}

}  // namespace

std::vector<std::pair<std::uint32_t, std::uint32_t>> copied_files(const Catalog& catalog, const ItemStore& items,
                                                                  std::span<const std::uint32_t> tensors) {
  std::vector<FileBoxes> files = boxes_by_file(catalog, items, tensors);
  // A copy may hold more than is looked for in its place, so files are compared with the one that has the most.
  std::ranges::stable_sort(files, std::ranges::greater(), [](const FileBoxes& each) { return each.boxes.size(); });
  std::map<std::pair<std::int64_t, Box>, const FileBoxes*> most;  // By size and first box.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
  for (const FileBoxes& each : files) {
    const auto [with, is_new] = most.try_emplace({catalog.files[each.file].bytes, each.boxes.front()}, &each);
    const auto is_one_value = [&](const auto& box) { return is_constant(catalog, items, box.first, box.second); };
    if (is_new || !std::ranges::includes(with->second->boxes, each.boxes)) continue;
    if (!std::ranges::all_of(each.storages, is_one_value)) pairs.push_back(std::minmax(with->second->file, each.file));
  }
  return pairs;
}

Error copied_file(const Catalog& catalog, const std::pair<std::uint32_t, std::uint32_t>& pair) {
  const std::string &a = catalog.files[pair.first].path, &b = catalog.files[pair.second].path;
  return Error(ErrorCode::kCorruption, fmt::format("{} and {} hold the same elements", a, b))
      .in_file(b)
      .of_kind(FindingKind::kRankMismatch)
      .because(".metadata expects different boxes in each, so one may be a copy of the other; which one is unknown");
}

}  // namespace shard::dcp

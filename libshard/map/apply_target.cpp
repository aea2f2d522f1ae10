#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/error.h"
#include "libshard/map/apply.h"
#include "libshard/map/flat_buffers.h"

namespace shard {

Catalog AppliedMap::ranked_target(std::string_view format, std::int64_t max_file_bytes) const {
  Catalog target;
  target.format = format;
  target.metadata = stored_.metadata;
  target.locations = stored_.locations;
  target.borrowed = stored_.borrowed;
  target.borrowed.insert(target.borrowed.end(), {stored_.arena, selection_.arena});
  target.world_size = ranks_;
  std::vector<std::uint32_t> file_of(static_cast<std::size_t>(ranks_), kNoIndex);  // Each rank's last one.
  std::vector<std::int64_t> bytes_of(file_of.size());
  CatalogBuilder builder(target);
  for (const SelectedTensor& selected : selection_.tensors) {
    Tensor tensor = stored_.tensors[selected.source];
    StoredTensor stored = stored_.stored_of(tensor);
    Storage storage = stored_.storages[stored.storage];
    const auto rank = static_cast<std::size_t>(std::max(tensor.rank, 0));
    if (file_of[rank] == kNoIndex || bytes_of[rank] + storage.bytes > max_file_bytes) {
      file_of[rank] = static_cast<std::uint32_t>(target.files.size());
      bytes_of[rank] = 0;
      target.files.push_back({rank_files_[rank], 0, static_cast<int>(rank)});
    }
    bytes_of[rank] += storage.bytes;
    storage.file = file_of[rank];
    tensor.source = selected.source;
    stored.storage = builder.add_storage(storage);
    builder.begin(tensor);
    builder.add_whole(builder.add_stored(stored));
  }
  const auto idle = std::ranges::find(file_of, kNoIndex);
  if (idle == file_of.end()) return target;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("cannot write a file for rank {}: the map stores nothing on it", idle - file_of.begin()));
}

Catalog AppliedMap::plan_target(const Catalog& placed, std::uint32_t first_padding) const {
  Catalog target;
  target.format = placed.format;
  target.files = placed.files;
  target.storages = placed.storages;
  target.stored = placed.stored;
  target.borrowed = placed.borrowed;
  target.borrowed.push_back(placed.arena);
  std::vector<std::uint32_t> placed_of(stored_.tensors.size(), kNoIndex);
  for (std::uint32_t i = 0; i < placed.tensors.size(); ++i) placed_of[placed.tensors[i].source] = i;
  const std::vector<int> singles = single_dims(placed);
  const std::span<const std::uint32_t> buffer_of = std::span(placed_of).subspan(flat_ ? first_buffer_ : 0);
  const LinkTargets targets{placed, singles, placed_of, flat_.get(), buffer_of};
  CatalogBuilder builder(target);
  std::vector<Chunk> chunks;
  for (const Entry& entry : entries_) {
    if (entry.is_dropped) continue;
    builder.begin(entry.name, {}, entry.dtype, entry.shape);
    builder.tensor().source = entry.is_padding ? first_padding + entry.source : entry.source;
    chunks.clear();
    append_linked(targets, entry.links, *target.arena, chunks);
    for (const Chunk& chunk : chunks) builder.add_chunk(chunk);
  }
  return target;
}

}  // namespace shard

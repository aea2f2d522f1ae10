#include "libshard/exec/reading_groups.h"

#include <algorithm>
#include <compare>

namespace shard {

std::vector<std::vector<std::size_t>> reading_groups(const Catalog& catalog, std::span<const std::uint32_t> tensors) {
  struct InStream {
    std::uint32_t storage;
    std::int64_t first_bytes;
    std::size_t position;
    auto operator<=>(const InStream&) const = default;
  };
  std::vector<std::vector<std::size_t>> groups;
  // A tensor that begins in a stream is sorted by its storage and position there. All others are groups by themselves.
  std::vector<InStream> in_streams;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::span<const Chunk> chunks = catalog.chunks_of(catalog.tensors[tensors[i]]);
    const StoredTensor* stored = chunks.empty() ? nullptr : &catalog.stored[chunks.front().stored];
    if (stored != nullptr && catalog.storages[stored->storage].is_stream) {
      in_streams.push_back({stored->storage, chunks.front().first * element_bytes(stored->dtype), i});
    } else {
      groups.push_back({i});
    }
  }
  std::ranges::sort(in_streams);
  // Tensors of one stream form one group.
  for (std::size_t i = 0; i < in_streams.size(); ++i) {
    if (i == 0 || in_streams[i].storage != in_streams[i - 1].storage) groups.emplace_back();
    groups.back().push_back(in_streams[i].position);
  }
  return groups;
}

}  // namespace shard

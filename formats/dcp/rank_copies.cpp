#include "formats/dcp/rank_copies.h"

#include <algorithm>
#include <vector>

namespace shard::dcp {

void RankCopies::split_differing() {
  std::vector<std::uint32_t> copied;
  for (std::uint32_t t = 0; t < catalog_.tensors.size(); ++t) {
    const Tensor& tensor = catalog_.tensors[t];
    const auto chunks = catalog_.chunks_of(tensor);
    const auto is_whole = [&](const Chunk& chunk) { return chunk.sizes == tensor.shape; };
    if (chunks.size() > 1 && std::ranges::all_of(chunks, is_whole)) copied.push_back(t);
  }
  items_.locate(copied);
  for (const std::uint32_t t : copied) split_unless_equal(t);
}

bool RankCopies::split_unless_equal(std::uint32_t index) {
  const Tensor tensor = catalog_.tensors[index];
  const auto chunks = catalog_.chunks_of(tensor);
  const auto whole = std::ranges::find_if(chunks, [&](const Chunk& chunk) { return !is_lost(chunk); });
  const auto equals_first = [&](const Chunk& chunk) { return is_lost(chunk) || is_equal(*whole, chunk); };
  if (std::ranges::all_of(chunks, equals_first)) return false;
  for (std::uint32_t i = 0; i < tensor.chunk_count; ++i) {
    Tensor own = tensor;
    own.first_chunk = tensor.first_chunk + i;
    own.chunk_count = 1;
    own.rank = catalog_.stored_of(own).rank;
    if (i == 0) {
      catalog_.tensors[index] = own;
    } else {
      catalog_.tensors.push_back(own);
    }
  }
  return true;
}

bool RankCopies::is_lost(const Chunk& chunk) const {
  return findings_.lost_storage(catalog_.stored_of(chunk).storage) != nullptr;
}

bool RankCopies::is_equal(const Chunk& a, const Chunk& b) {
  const std::uint32_t x = catalog_.stored[a.stored].storage, y = catalog_.stored[b.stored].storage;
  const auto crc_x = catalog_.storages[x].crc32, crc_y = catalog_.storages[y].crc32;
  if (!crc_x || !crc_y) {
    warn_of_unseen_copies();
    return true;
  }
  return crc_x == crc_y && catalog_.storages[x].bytes == catalog_.storages[y].bytes && a.strides == b.strides &&
         a.first == b.first;
}

void RankCopies::warn_of_unseen_copies() {
  if (!has_warned_) {
    catalog_.warnings.emplace_back(
        "items have no CRC: tensors saved by several ranks are read from the lowest rank without comparison");
  }
  has_warned_ = true;
}

}  // namespace shard::dcp

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/map/flat_buffers.h"
#include "libshard/map/undo.h"

namespace shard {

namespace {

void sort_unique(std::vector<std::uint32_t>& numbers) {
  std::ranges::sort(numbers);
  const auto repeated = std::ranges::unique(numbers);
  numbers.erase(repeated.begin(), repeated.end());
}

}  // namespace

LinkTargets UndoneMap::targets_in(const Catalog& stored) const { return {stored, singles_, {}, flat_, buffer_of_}; }

std::vector<Chunk> UndoneMap::chunks_of(const Catalog& stored, const Padding& padding, Arena& arena) const {
  std::vector<Chunk> chunks;
  append_linked(targets_in(stored), std::span(&padding.link, 1), arena, chunks);
  return chunks;
}

Catalog UndoneMap::make_catalog(const Catalog& stored) const {
  Catalog logical = stored;
  logical.arena = arena_;
  logical.borrowed.push_back(stored.arena);
  logical.root = nullptr;
  logical.tensors.clear();
  logical.chunks.clear();
  logical.metadata.erase(kAliasesNote);
  logical.warnings.insert(logical.warnings.end(), warnings_.begin(), warnings_.end());
  CatalogBuilder builder(logical);
  std::vector<Chunk> chunks;
  for (const Entry& entry : entries_) {
    builder.begin(entry.name, entry.path, entry.dtype, entry.shape);
    chunks.clear();
    append_linked(targets_in(stored), entry.links, *arena_, chunks);
    for (const Chunk& chunk : chunks) builder.add_chunk(chunk);
    Tensor& tensor = builder.tensor();
    tensor.rank = entry.rank;
    if (entry.links.size() == 1 && entry.links[0].is_whole) {
      tensor.sharding = stored.tensors[entry.links[0].stored].sharding;
      tensor.damaged = stored.tensors[entry.links[0].stored].damaged;
    }
  }
  validate_catalog(logical);
  return logical;
}

void UndoneMap::refresh(const Catalog& stored, std::span<const std::uint32_t> tensors, Catalog& logical) const {
  logical.storages = stored.storages;
  logical.stored = stored.stored;
  std::vector<Chunk> chunks;
  for (const std::uint32_t index : tensors) {
    const Tensor& tensor = logical.tensors[index];
    chunks.clear();
    append_linked(targets_in(stored), entries_[index].links, *arena_, chunks);
    std::ranges::copy(chunks, logical.chunks.begin() + tensor.first_chunk);
  }
}

std::vector<std::uint32_t> UndoneMap::stored_of(std::span<const std::uint32_t> tensors) const {
  std::vector<std::uint32_t> stored;
  for (const std::uint32_t tensor : tensors) {
    for (const MapLink& link : entries_[tensor].links) append_stored(link, stored);
  }
  sort_unique(stored);
  return stored;
}

std::vector<std::uint32_t> UndoneMap::stored_of(const Padding& padding) const {
  std::vector<std::uint32_t> stored;
  append_stored(padding.link, stored);
  sort_unique(stored);
  return stored;
}

/// All of a local tensor, that its padding can be read with it.
void UndoneMap::append_stored(const MapLink& link, std::vector<std::uint32_t>& out) const {
  if (!link.is_flat) return out.push_back(link.stored);
  for (const FlatPlace& place : flat_->places_of(link.stored)) out.push_back(buffer_of_[place.buffer]);
}

}  // namespace shard

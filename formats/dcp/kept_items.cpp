#include "formats/dcp/kept_items.h"

#include <fmt/format.h>

#include <utility>

#include "formats/dcp/check_items.h"
#include "libshard/core/error.h"

namespace shard::dcp {
namespace {

Error cannot_keep(std::string_view name, std::string_view file, const Error& why) {
  Error error(ErrorCode::kUnsupported,
              fmt::format("cannot repair the checkpoint without '{}', which is not read", name));
  return error.of_tensor(name).in_file(file).because(reason_of(why)).found(why.found());
}

}  // namespace

void ItemKeeper::keep_tensor(std::uint32_t index, const Error& why) {
  Tensor& tensor = catalog.tensors[index];
  Originals::Kept kept{.name = tensor.name, .path = tensor.path, .shape = tensor.shape, .dtype = tensor.dtype};
  std::vector<std::uint32_t> storages;
  bool is_whole = true;
  for (const Chunk& chunk : catalog.chunks_of(tensor)) {
    const StoredTensor& stored = catalog.stored[chunk.stored];
    const bool is_reshaped = chunk.sizes.size() != stored.shape.size();
    const bool can_be = items.is_item(stored.storage) && is_copied(items.item(stored.storage)) && !is_reshaped;
    if (!can_be) throw cannot_keep(tensor.name, why.file(), why);
    if (findings.lost_storage(stored.storage) != nullptr) {
      is_whole = false;
    } else if (const std::optional<Error> fault = fault_of(stored.storage)) {
      findings.lose_storage(stored.storage, *fault);
      is_whole = false;
    }
    kept.requires_grad = kept.requires_grad || stored.requires_grad;
    storages.push_back(stored.storage);
  }
  if (!is_whole) return;
  for (std::size_t i = 0; i < storages.size(); ++i) {
    const Chunk& chunk = catalog.chunks[tensor.first_chunk + i];
    Originals::KeptItem& item = kept.items.emplace_back(keep(storages[i]));
    item.offsets = chunk.offsets;
    item.sizes = chunk.sizes;
  }
  tensor.damaged = true;
  originals.kept.push_back(std::move(kept));
}

std::optional<Error> ItemKeeper::keep_object(const ObjectEntry& object, const Error& why) {
  if (object.rank >= 0 || !is_copied(items.item(object.item))) throw cannot_keep(object.name, why.file(), why);
  if (std::optional<Error> fault = fault_of(object.item)) return fault;
  Originals::Kept kept{.name = object.name, .path = object.path, .is_object = true};
  kept.items.push_back(keep(object.item));
  originals.kept.push_back(std::move(kept));
  return std::nullopt;
}

std::optional<Error> ItemKeeper::fault_of(std::uint32_t index) const {
  const Item& item = items.item(index);
  return fault_of_item(items.file(item.file), item);
}

Originals::KeptItem ItemKeeper::keep(std::uint32_t index) {
  items.settle_whole(index);
  const Item& item = items.item(index);
  return {.item = {.storage = index, .bytes = item.length}, .rank = catalog.files[item.file].rank};
}

}  // namespace shard::dcp

#include "formats/dcp/inner_tensors.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "formats/torch/saved_file.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/catalog/tree.h"

namespace shard::dcp {
namespace {

struct Inner {
  InnerTensor* tensor;
  int rank;       // Of its object.
  bool is_first;  // Of its node.
  std::uint32_t storage;
};

std::vector<Inner> add_storages(std::span<const ObjectEntry> objects, std::span<LoadedObject> loaded, ItemStore& items,
                                const Catalog& catalog) {
  std::vector<Inner> inner;
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    const auto first = static_cast<std::uint32_t>(catalog.storages.size());
    const std::uint32_t file = items.item(objects[i].item).file;
    for (const Location& location : loaded[i].locations) items.add_storage(location, file);
    for (std::size_t k = 0; k < loaded[i].tensors.size(); ++k) {
      InnerTensor& tensor = loaded[i].tensors[k];
      const bool is_first = tensor.node->number == static_cast<std::int64_t>(k);
      inner.push_back({&tensor, objects[i].rank, is_first, first + tensor.location});
    }
  }
  return inner;
}

bool are_copies(const Inner& a, const Inner& b) {
  return a.tensor->name == b.tensor->name && a.rank != b.rank && a.tensor->view.shape == b.tensor->view.shape &&
         a.tensor->view.dtype == b.tensor->view.dtype;
}

/// Makes one tensor of the last `count`, unless they differ: then each becomes its rank's. \returns whether they do.
bool join(std::uint32_t first, std::size_t count, RankCopies& rank_copies, Catalog& catalog) {
  if (count == 1) return false;
  catalog.tensors[first].chunk_count = static_cast<std::uint32_t>(count);
  catalog.tensors.resize(first + 1);
  return rank_copies.split_unless_equal(first);
}

void add_copies(std::span<const Inner> copies, RankCopies& rank_copies, Catalog& catalog) {
  const auto begin = static_cast<std::uint32_t>(catalog.tensors.size());
  for (const Inner& inner : copies) {
    const InnerTensor& from = *inner.tensor;
    StoredTensor stored = torch_save::stored_tensor(from.view, inner.storage);
    stored.rank = catalog.files[catalog.storages[inner.storage].file].rank;
    CatalogBuilder(catalog).add_tensor(from.name, compact_path(from.path, from.name), stored);
  }
  const bool differ = join(begin, copies.size(), rank_copies, catalog);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].is_first) copies[i].tensor->node->number = static_cast<std::int64_t>(begin + (differ ? i : 0));
  }
}

}  // namespace

void add_inner_tensors(std::span<const ObjectEntry> objects, std::span<LoadedObject> loaded, ItemStore& items,
                       RankCopies& rank_copies, Catalog& catalog) {
  std::vector<Inner> inner = add_storages(objects, loaded, items, catalog);
  // Objects are by name and rank; so equal names of ranks are found by sorting what is mostly sorted.
  std::ranges::stable_sort(inner, [](const Inner& a, const Inner& b) { return a.tensor->name < b.tensor->name; });
  for (std::size_t i = 0; i < inner.size();) {
    std::size_t end = i + 1;
    while (end < inner.size() && are_copies(inner[i], inner[end])) ++end;
    add_copies(std::span(inner).subspan(i, end - i), rank_copies, catalog);
    i = end;
  }
}

}  // namespace shard::dcp

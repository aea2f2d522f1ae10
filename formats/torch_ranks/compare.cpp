#include "formats/torch_ranks/compare.h"

#include <vector>

#include "libshard/catalog/bounds.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/exec/tensor_reader.h"

namespace shard::torch_ranks {

namespace {

/// A checkpoint of only one tensor.
class LoneTensor final : public Reader {
 public:
  LoneTensor(torch_save::SavedFiles& files, const Catalog& from, const StoredTensor& stored)
      : files_(files), storage_(stored.storage) {
    Storage& storage = catalog_.storages.emplace_back(from.storages[stored.storage]);
    catalog_.files.push_back(from.files[storage.file]);
    storage.file = 0;
    StoredTensor alone = stored;
    alone.storage = 0;
    CatalogBuilder(catalog_).add_tensor("", {}, alone);
  }
  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t) const override { return bytes_of(0); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t) const override { return files_.bytes_of(storage_); }

 private:
  torch_save::SavedFiles& files_;
  std::uint32_t storage_;
  Catalog catalog_;
};

/// A view whose elements overlap, as expand() makes it, may have any number of elements. Such a view is replaced by the
/// range of its storage as one dimension, which is at most as long as the storage.
StoredTensor without_overlap(const StoredTensor& stored, Arena& arena) {
  const std::int64_t span = last_element(stored.shape, stored.strides, stored.first) - stored.first + 1;
  if (checked_numel(stored.shape) <= span) return stored;
  StoredTensor line = stored;
  line.shape = arena.dims(std::vector{span});
  line.strides = arena.dims(std::vector{std::int64_t{1}});
  return line;
}

bool is_equal_content(const Reader& a, const Reader& b) {
  Progress progress;
  TensorReader left(a.catalog(), a, 0, progress), right(b.catalog(), b, 0, progress);
  const Tensor& tensor = a.catalog().tensors.front();
  return !first_difference(left, right, checked_numel(tensor.shape), tensor.dtype);
}

}  // namespace

bool is_equal(torch_save::SavedFiles& files, const Catalog& catalog, const StoredTensor& a, const StoredTensor& b) {
  if (a.dtype != b.dtype || !(a.shape == b.shape)) return false;
  if (is_empty(a.shape) || files.is_lost(a.storage) || files.is_lost(b.storage)) return true;
  files.locate({a.storage, b.storage});
  Arena arena;
  const StoredTensor left = without_overlap(a, arena), right = without_overlap(b, arena);
  const bool is_line = !(left.shape == a.shape);
  if (!(left.shape == right.shape) || (is_line && !(a.strides == b.strides))) return false;
  catalog.arena->charge(Charge::kCompared, checked_bytes(checked_numel(left.shape), left.dtype));
  return is_equal_content(LoneTensor(files, catalog, left), LoneTensor(files, catalog, right));
}

}  // namespace shard::torch_ranks

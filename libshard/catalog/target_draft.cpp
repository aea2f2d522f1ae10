#include "libshard/catalog/target_draft.h"

namespace shard {

TargetDraft::TargetDraft(const Catalog& from, const Selection& what, const FormatTraits& format)
    : source(from), selection(what), traits(format), sharing(from, what, format.sharing) {
  target.format = traits.name;
  target.metadata = source.metadata;
  if (selection.renamed) target.metadata.erase(kAliasesNote);  // The note would contain names that no longer exist.
  target.originals = source.originals;
  target.locations = source.locations;
  target.borrowed = source.borrowed;
  target.borrowed.insert(target.borrowed.end(), {source.arena, selection.arena});
  target.rank_files = source.rank_files;
  target.tensors.reserve(selection.tensors.size());
  target.stored.reserve(selection.tensors.size());
  target.chunks.reserve(selection.tensors.size());
  target.storages.reserve(selection.tensors.size());
}

Tensor& TargetDraft::begin_tensor(std::size_t selected) {
  const SelectedTensor& from = selection.tensors[selected];
  Tensor tensor;
  tensor.name = from.name;
  tensor.path = from.path;
  tensor.shape = source_tensor(selected).shape;
  tensor.alias_of = sharing.alias(selected);
  tensor.source = from.source;
  tensor.dtype = from.dtype;
  builder.begin(tensor);
  return builder.tensor();
}

StoredTensor TargetDraft::make_stored(std::size_t selected, Dims shape) const {
  StoredTensor stored;
  stored.shape = shape;
  stored.dtype = selection.tensors[selected].dtype;
  const Tensor& tensor = source_tensor(selected);
  if (tensor.chunk_count > 0) stored.requires_grad = source.stored_of(tensor).requires_grad;
  return stored;
}

std::uint32_t TargetDraft::add_storage(std::size_t selected, std::int64_t bytes) {
  Storage storage;
  storage.bytes = bytes;
  const Tensor& tensor = source_tensor(selected);
  if (tensor.chunk_count > 0) storage.location = source.storage_of(tensor).location;
  return builder.add_storage(storage);
}

}  // namespace shard

#include "formats/torch_ranks/merge_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/torch_ranks/pickled_object.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"

namespace shard::torch_ranks {

Error contradiction(const MergeContext& context, const Holder& holder, FindingKind kind, const std::string& message) {
  Error error(ErrorCode::kCorruption, fmt::format("tensor '{}': {}", holder.leaf->name, message));
  error.in_file(context.catalog.files[holder.file->number].path).of_tensor(holder.leaf->name);
  return error.of_kind(kind).of_rank(holder.rank());
}

torch_save::TensorView local_view(MergeContext& context, const Holder& holder, const Value& local, DType dtype,
                                  std::span<const std::int64_t> shape) {
  const std::string& file = context.catalog.files[holder.file->number].path;
  std::optional<torch_save::TensorView> view;
  try {
    view = torch_save::as_tensor(*context.catalog.arena, local);
  } catch (const Error& error) {
    throw named(error, holder.leaf->name).in_file(file);
  }
  if (!view) {
    const std::string_view kind = torch_save::unsupported_tensor_kind(local);
    if (kind.empty()) throw contradiction(context, holder, FindingKind::kBadPickle, "a local shard is not a tensor");
    throw Error(ErrorCode::kUnsupported,
                fmt::format("tensor '{}': a local shard is a tensor of kind '{}'", holder.leaf->name, kind))
        .of_tensor(holder.leaf->name)
        .in_file(file);
  }
  if (view->dtype != dtype) {
    throw contradiction(context, holder, FindingKind::kDtypeMismatch, "a local shard has another dtype than its tensor")
        .expected(dtype_name(dtype))
        .found(dtype_name(view->dtype));
  }
  if (!std::ranges::equal(view->shape, shape)) {
    throw contradiction(context, holder, FindingKind::kShapeMismatch, "a local shard has another shape than its place")
        .expected(to_string(shape))
        .found(to_string(view->shape));
  }
  return *view;
}

std::uint32_t add_stored(MergeContext& context, const Holder& holder, const torch_save::TensorView& view) {
  Catalog& catalog = context.catalog;
  StoredTensor stored;
  try {
    stored = torch_save::stored_tensor(view, context.files.storage_of(holder.file->number, view));
  } catch (const Error& error) {
    throw named(error, holder.leaf->name).in_file(catalog.files[holder.file->number].path);
  }
  catalog.arena->charge(Charge::kChunks);
  stored.rank = holder.rank();
  stored.requires_grad = holder.leaf->requires_grad;
  stored.has_attributes = holder.leaf->has_attributes;
  catalog.stored.push_back(stored);
  return static_cast<std::uint32_t>(catalog.stored.size() - 1);
}

namespace {

/// A local tensor without elements lies where its cut would be: at the end of each dimension of which it has nothing.
Chunk empty_chunk(Arena& arena, Dims shape, const StoredTensor& local) {
  std::vector<std::int64_t> offsets;
  for (int d = 0; d < shape.size(); ++d) offsets.push_back(local.shape[d] == 0 ? shape[d] : 0);
  return {arena.dims(offsets), local.shape, local.strides, local.first};
}

}  // namespace

void add_pieces(MergeContext& context, Dims shape, const RankPiece& piece, std::uint32_t stored) {
  Catalog& catalog = context.catalog;
  Arena& arena = *catalog.arena;
  const StoredTensor local = catalog.stored[stored];
  arena.charge(Charge::kChunks, std::ssize(piece.boxes));
  if (piece.boxes.empty()) {
    catalog.chunks.push_back(empty_chunk(arena, shape, local));
    catalog.chunks.back().stored = stored;
  }
  for (std::size_t i = 0; i < piece.boxes.size(); ++i) {
    const auto dims = static_cast<std::size_t>(piece.boxes[i].dims);
    Chunk chunk{arena.dims(std::span(piece.boxes[i].offset).first(dims)),
                arena.dims(std::span(piece.boxes[i].size).first(dims)), local.strides, local.first, stored};
    for (std::size_t d = 0; d < dims; ++d) {
      chunk.first =
          checked_add(chunk.first, checked_mul(piece.local_offsets[i][d], local.strides[static_cast<int>(d)]));
    }
    catalog.chunks.push_back(chunk);
  }
}

Tensor begin_tensor(const MergeContext& context, const Holder& first, DType dtype, Dims shape) {
  Tensor tensor;
  tensor.name = first.leaf->name;
  tensor.path = first.leaf->path;
  tensor.shape = shape;
  tensor.dtype = dtype;
  tensor.first_chunk = static_cast<std::uint32_t>(context.catalog.chunks.size());
  return tensor;
}

std::uint32_t end_tensor(MergeContext& context, Tensor tensor) {
  Catalog& catalog = context.catalog;
  catalog.arena->charge(Charge::kEntries);
  tensor.chunk_count = static_cast<std::uint32_t>(catalog.chunks.size()) - tensor.first_chunk;
  catalog.tensors.push_back(tensor);
  return static_cast<std::uint32_t>(catalog.tensors.size() - 1);
}

}  // namespace shard::torch_ranks

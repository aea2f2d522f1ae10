#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/torch_ranks/merge.h"
#include "formats/torch_ranks/pickled_object.h"
#include "libshard/catalog/bounds.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/exec/tensor_reader.h"

namespace shard::torch_ranks {

Error contradiction(const MergeContext& context, const Holder& holder, FindingKind kind, const std::string& message) {
  Error error(ErrorCode::kCorruption, fmt::format("tensor '{}': {}", holder.leaf->name, message));
  error.in_file(context.catalog.files[holder.file->number].path).of_tensor(holder.leaf->name);
  return error.of_kind(kind).of_rank(holder.rank());
}

Error differs_from_first(const MergeContext& context, Holders holders, const Holder& holder, FindingKind kind,
                         std::string_view what) {
  return contradiction(
             context, holder, kind,
             fmt::format("rank {} has a different {} from rank {}", holder.rank(), what, holders.front().rank()))
      .because("the files come from different saves");
}

void check_whole(const MergeContext& context, Holders holders, const Holder& holder, const WholeTensor& own,
                 const WholeTensor& first) {
  if (own.shape != first.shape) {
    throw differs_from_first(context, holders, holder, FindingKind::kShapeMismatch, "shape")
        .expected(to_string(first.shape))
        .found(to_string(own.shape));
  }
  if (own.dtype != first.dtype) {
    throw differs_from_first(context, holders, holder, FindingKind::kDtypeMismatch, "dtype")
        .expected(dtype_name(first.dtype))
        .found(dtype_name(own.dtype));
  }
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
    throw contradiction(context, holder, FindingKind::kDtypeMismatch, "a local shard does not have its tensor's dtype")
        .expected(dtype_name(dtype))
        .found(dtype_name(view->dtype));
  }
  if (!std::ranges::equal(view->shape, shape)) {
    throw contradiction(context, holder, FindingKind::kShapeMismatch,
                        "a local shard does not have the shape of its box")
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
  stored.rank = holder.rank();
  stored.requires_grad = holder.leaf->requires_grad;
  stored.has_attributes = holder.leaf->has_attributes;
  return context.builder.add_stored(stored);
}

void add_pieces(MergeContext& context, const RankPiece& piece, std::uint32_t stored) {
  if (piece.boxes.empty()) context.builder.add_empty(stored);
  for (std::size_t i = 0; i < piece.boxes.size(); ++i) {
    context.builder.add_part(stored, piece.boxes[i].offsets(), piece.boxes[i].sizes(), piece.local_offsets[i]);
  }
}

std::uint32_t begin_tensor(MergeContext& context, const Holder& first, DType dtype, Dims shape) {
  return context.builder.begin(first.leaf->name, first.leaf->path, dtype, shape);
}

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

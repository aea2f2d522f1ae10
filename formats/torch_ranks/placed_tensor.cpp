#include "formats/torch_ranks/placed_tensor.h"

#include <fmt/format.h>

#include <vector>

#include "formats/torch_ranks/merge_placed.h"
#include "formats/torch_ranks/pickled_object.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::torch_ranks {

namespace {

constexpr std::string_view kWhat = "tensor in pieces";

std::vector<Dims> read_boxes(Arena& arena, const Value& list, std::string_view what, int dimensions) {
  const std::span<Value* const> items = sequence(list, what);
  arena.charge(Charge::kShards, std::ssize(items));
  std::vector<Dims> boxes;
  for (const Value* item : items) {
    boxes.push_back(dims(arena, *item, what));
    if (boxes.back().size() == dimensions) continue;
    throw malformed(what, fmt::format("{} is not of {} dimensions", to_string(boxes.back()), dimensions))
        .of_kind(FindingKind::kShapeMismatch);
  }
  return boxes;
}

/// \throws Error kCorruption  the box leaves the shape.
void check_inside(Dims offset, Dims size, Dims shape, std::string_view what) {
  for (int d = 0; d < shape.size(); ++d) {
    if (checked_add(offset[d], size[d]) <= shape[d]) continue;
    throw malformed(kWhat, fmt::format("a piece of {} at {} leaves the {}", to_string(size), to_string(offset), what))
        .of_kind(FindingKind::kOutOfBounds)
        .expected(to_string(shape));
  }
}

}  // namespace

std::optional<PlacedTensorValue> as_placed_tensor(Arena& arena, const Value& value) {
  // torch._tensor._rebuild_from_type_v2(function, class, arguments, state)
  const bool has_state = value.is_call_of("torch._tensor", "_rebuild_from_type_v2") && value.items().size() == 4 &&
                         value.items()[3]->kind == ValueKind::kDict;
  if (!has_state) return std::nullopt;
  const Value& state = *value.items()[3];
  const Value *shape = pickle::entry(state, "global_shape"), *offsets = pickle::entry(state, "global_offsets"),
              *places = pickle::entry(state, "local_offsets"), *sizes = pickle::entry(state, "local_sizes");
  if (shape == nullptr || offsets == nullptr || places == nullptr || sizes == nullptr) return std::nullopt;
  const std::optional<torch_save::TensorView> view = torch_save::as_tensor(arena, value);
  if (!view) return std::nullopt;
  PlacedTensorValue tensor;
  tensor.view = *view;
  tensor.requires_grad = view->requires_grad;
  tensor.shape = dims(arena, *shape, "global shape");
  const int dimensions = tensor.shape.size();
  const std::vector<Dims> at = read_boxes(arena, *offsets, "global offset", dimensions);
  const std::vector<Dims> from = read_boxes(arena, *places, "local offset", dimensions);
  const std::vector<Dims> size = read_boxes(arena, *sizes, "local size", dimensions);
  if (at.size() != from.size() || at.size() != size.size() || view->shape.size() != dimensions) {
    throw malformed(kWhat,
                    fmt::format("its attributes are of {}, {} and {} pieces", at.size(), from.size(), size.size()))
        .of_kind(FindingKind::kShapeMismatch);
  }
  for (std::size_t i = 0; i < at.size(); ++i) {
    check_inside(at[i], size[i], tensor.shape, "tensor");
    check_inside(from[i], size[i], view->shape, "buffer");
    tensor.pieces.push_back({at[i], size[i], from[i]});
  }
  return tensor;
}

std::uint32_t merge_placed_tensor(MergeContext& context, Holders holders) {
  const auto value_of = [](const Holder& each) -> const PlacedTensorValue& {
    return each.file->placed[each.leaf->item];
  };
  const PlacedTensorValue& first = value_of(holders.front());
  const std::uint32_t index = begin_tensor(context, holders.front(), first.view.dtype, first.shape);
  for (const Holder& holder : holders) {
    const PlacedTensorValue& value = value_of(holder);
    if (!(value.shape == first.shape)) {
      throw contradiction(context, holder, FindingKind::kShapeMismatch, "its global shape is not that of other ranks")
          .expected(to_string(first.shape))
          .found(to_string(value.shape));
    }
    if (value.view.dtype != first.view.dtype) {
      throw contradiction(context, holder, FindingKind::kDtypeMismatch, "its dtype is not that of other ranks")
          .expected(dtype_name(first.view.dtype))
          .found(dtype_name(value.view.dtype));
    }
    const std::uint32_t stored = add_stored(context, holder, value.view);
    for (const PlacedPiece& piece : value.pieces) {
      context.builder.add_part(stored, piece.offsets, piece.sizes, piece.from);
    }
  }
  return index;
}

}  // namespace shard::torch_ranks

// Restores the shapes of optimizer tensors that Megatron-Core up to 0.15 stored reshaped.
//
// If each rank has a block of [x, y] of a tensor [X, Y], the tensor is stored as [X/x, Y/y, x*y]. A chunk is a run of
// one block's elements in row-major order. The original shape is recorded in `mcore_data`, an attribute of Metadata.
// torch 2.11 drops this attribute for Megatron-Core up to 0.14; then the shape of the parameter is used, because a
// state has the same shape as its parameter.
//
// Source: megatron/core/dist_checkpointing/strategies/{torch,resharding}.py of Megatron-Core 0.14 and 0.15.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "formats/dcp/metadata.h"
#include "formats/parts/pickle/attributes.h"
#include "formats/parts/pickle/pickle.h"
#include "libshard/core/box.h"
#include "libshard/core/hash_table.h"

namespace shard::dcp {
namespace {

using Shapes = HashMap<std::string_view, Dims>;

/// The number of elements; nothing if the shape is invalid.
std::optional<std::int64_t> count_of(Dims shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape.span()) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) return std::nullopt;
  }
  return count;
}

/// KEY of "[chained_K.]optimizer.state.STATE.KEY"; empty if the name has a different form.
std::string_view parameter_of_state(std::string_view name) {
  constexpr std::string_view kStates = "optimizer.state.";
  if (name.starts_with("chained_")) name.remove_prefix(std::min(name.size(), name.find('.')) + 1);
  if (!name.starts_with(kStates)) return {};
  name.remove_prefix(kStates.size());
  const std::size_t dot = name.find('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(dot + 1);
}

/// The shapes in `mcore_data`. An empty shape marks a tensor that is stored with its original shape.
Shapes listed_shapes(Arena& arena, const Value* mcore_data) {
  Shapes shapes;
  if (mcore_data == nullptr) return shapes;
  for (const auto [key, entry] : ItemPairs(pickle::mapping(*mcore_data, "mcore_data"))) {
    const std::string_view name = pickle::string(*key, "name in mcore_data");
    pickle::mapping(*entry, "entry of mcore_data");
    const Value* shape = pickle::entry(*entry, "nd_reformulated_orig_global_shape");
    shapes.try_emplace(name, shape == nullptr ? Dims() : pickle::dims(arena, *shape, "shape in mcore_data"));
  }
  return shapes;
}

/// Adds the parameters' shapes for states that have the same number of elements in a different shape.
void add_shapes_of_parameters(const Metadata& metadata, Shapes& shapes) {
  Shapes stored;
  for (const TensorEntry& tensor : metadata.tensors) stored.try_emplace(tensor.name, tensor.size);
  for (const TensorEntry& tensor : metadata.tensors) {
    const std::string_view name = parameter_of_state(tensor.name);
    const Dims* const parameter = name.empty() ? nullptr : stored.find(name);
    if (parameter == nullptr || *parameter == tensor.size) continue;
    const std::optional<std::int64_t> count = count_of(*parameter);
    if (count && count == count_of(tensor.size)) shapes.try_emplace(tensor.name, *parameter);
  }
}

/// Whether `stored` is [X/x, Y/y, x*y] for blocks of at least one element.
bool is_of_blocks(Dims shape, Dims stored) {
  const int dimensions = shape.size();
  if (stored.size() != dimensions + 1) return false;
  std::int64_t block = 1;
  for (int d = 0; d < dimensions; ++d) {
    if (shape[d] < 1 || stored[d] < 1 || shape[d] % stored[d] != 0) return false;
    if (__builtin_mul_overflow(block, shape[d] / stored[d], &block)) return false;
  }
  return block == stored[dimensions];
}

/// Whether the chunk is inside the stored shape and in one block: its size is 1 in every dimension but the last, which
/// counts the elements of a block.
bool is_run_of_block(const ChunkEntry& chunk, Dims stored) {
  if (chunk.sizes.size() != stored.size()) return false;
  for (int d = 0; d < stored.size(); ++d) {
    const bool is_one = d + 1 == stored.size() || chunk.sizes[d] == 1;
    const bool is_inside =
        chunk.offsets[d] >= 0 && chunk.sizes[d] >= 0 && chunk.offsets[d] <= stored[d] - chunk.sizes[d];
    if (!is_one || !is_inside) return false;
  }
  return true;
}

/// \returns false, without changes, if the chunks are not runs of blocks of that shape.
bool restore_shape(const Metadata& metadata, Dims shape, TensorEntry& tensor) {
  const auto chunks = std::span(metadata.chunks).subspan(tensor.first_chunk, tensor.chunk_count);
  const auto is_run = [&](const ChunkEntry& chunk) { return is_run_of_block(chunk, tensor.size); };
  if (!is_of_blocks(shape, tensor.size) || !std::ranges::all_of(chunks, is_run)) return false;
  tensor.stored_size = tensor.size;
  tensor.size = shape;
  return true;
}

}  // namespace

void restore_block_runs(Arena& arena, const Value* mcore_data, bool names_megatron, Metadata& metadata) {
  Shapes shapes = listed_shapes(arena, mcore_data);
  if (names_megatron) add_shapes_of_parameters(metadata, shapes);
  HashSet<std::string_view> contradicted;
  for (TensorEntry& tensor : metadata.tensors) {
    const Dims* const shape = shapes.find(tensor.name);
    if (shape == nullptr || shape->empty()) continue;
    if (!restore_shape(metadata, *shape, tensor)) contradicted.insert(tensor.name);
  }
  set_apart(
      metadata, [&](std::string_view name) { return contradicted.contains(name); },
      "of the optimizer are stored reshaped by Megatron-Core, not as runs of blocks of their own shape, and cannot be "
      "read");
}

}  // namespace shard::dcp

#include "libshard/compute/block_grid.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "libshard/core/checked.h"

namespace shard {

namespace {

constexpr std::int64_t kUsual = 128;  ///< The side of blocks that most tools choose.

bool fits_side(std::int64_t codes, std::int64_t scales, std::int64_t side) {
  if (codes == 0) return scales <= 1;
  return side > 0 && scales == ceil_div(codes, side);
}

/// The shape of the scales with `dims` dimensions; empty if they have no such shape.
std::vector<std::int64_t> with_dims(std::span<const std::int64_t> scales, std::size_t dims, std::int64_t rows,
                                    std::int64_t columns) {
  std::vector<std::int64_t> shape(scales.begin(), scales.end());
  const bool lacks_one = shape.size() + 1 == dims && !shape.empty();
  if (lacks_one && shape.back() == rows) {
    shape.push_back(1);  // A scale per row.
  } else if (lacks_one && dims >= 3 && shape.back() == columns) {
    shape.insert(shape.end() - 1, 1);  // ModelOpt's experts that are stored as [in, out].
  }
  const bool is_of_modelopt = shape.size() == 4 && dims == 2 && shape[1] == 1 && shape[3] == 1;
  if (is_of_modelopt) shape = {shape[0], shape[2]};
  if (shape.size() != dims) shape.clear();
  return shape;
}

/// The blocks of `codes` for which there are `scales`.
std::optional<BlockGrid> find_grid(const Matrices& codes, const Matrices& scales,
                                   std::span<const QuantizationScheme> schemes) {
  const std::int64_t all_rows = std::max<std::int64_t>(1, codes.rows),
                     all_columns = std::max<std::int64_t>(1, codes.columns);
  bool states_blocks = false, states_groups = false;
  std::vector<BlockGrid> possible;
  for (const QuantizationScheme& scheme : schemes) {
    if (scheme.block.size() != 2) continue;
    possible.push_back({scheme.block[0], scheme.block[1]});
    states_blocks = true;
  }
  for (const QuantizationScheme& scheme : schemes) {
    if (!scheme.group_size || *scheme.group_size < 1) continue;
    possible.push_back({1, *scheme.group_size});
    states_groups = true;
  }
  possible.insert(possible.end(), {{1, all_columns}, {all_rows, 1}});
  if (!states_blocks) possible.push_back({kUsual, kUsual});
  if (!states_blocks && !states_groups && scales.rows > 0 && scales.columns > 0) {
    possible.push_back({1, kUsual});
    // One block that is longer than usual would mean that blocks are missing.
    const auto is_even = [](std::int64_t all, std::int64_t count) {
      return all % count == 0 && (count > 1 || all <= kUsual);
    };
    if (is_even(all_rows, scales.rows) && is_even(all_columns, scales.columns)) {
      possible.push_back({all_rows / scales.rows, all_columns / scales.columns});
    }
  }
  const auto found = std::ranges::find_if(possible, [&](BlockGrid grid) { return fits_grid(codes, scales, grid); });
  return found == possible.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

Matrices matrices_of(std::span<const std::int64_t> shape) {
  Matrices result;
  const std::size_t dims = shape.size();
  for (std::size_t d = 0; d + 2 < dims; ++d) result.slices = checked_mul(result.slices, shape[d]);
  if (dims >= 2) result.rows = shape[dims - 2];
  if (dims >= 1) result.columns = shape[dims - 1];
  return result;
}

bool are_of_columns(std::span<const std::int64_t> weight, std::span<const std::int64_t> scales) {
  const std::size_t dims = weight.size();
  return dims >= 2 && scales.size() == dims && weight[dims - 1] > 1 && scales[dims - 1] == weight[dims - 1] &&
         scales[dims - 2] < weight[dims - 2];
}

bool fits_grid(const Matrices& codes, const Matrices& scales, BlockGrid grid) {
  return codes.slices == scales.slices && fits_side(codes.rows, scales.rows, grid.block_rows) &&
         fits_side(codes.columns, scales.columns, grid.block_columns);
}

bool choose_grid(std::span<const std::int64_t> weight, std::span<const std::int64_t> scales,
                 std::span<const QuantizationScheme> schemes, ScaledCodes& codes) {
  BlockGrid& grid = codes.scales.grid;
  grid = {std::max<std::int64_t>(1, codes.rows), std::max<std::int64_t>(1, codes.columns)};
  const std::int64_t numbers = checked_numel(scales);
  if (numbers == 1) {
    codes.rows = codes.rows > 0 ? checked_mul(codes.rows, codes.slices) : 0;
    codes.slices = 1;
    grid.block_rows = std::max<std::int64_t>(1, codes.rows);
    return true;
  }
  if (weight.size() < 2) return false;
  if (numbers == codes.slices && (scales.size() == 1 || scales.back() == 1)) return true;
  // A scale per output channel of a convolution.
  const bool is_of_first = numbers == weight[0] && (scales.size() == 1 || scales.size() == weight.size());
  if (weight.size() >= 4 && is_of_first && scales[0] == numbers) {
    codes.columns =
        checked_mul(checked_mul(codes.slices / std::max<std::int64_t>(1, weight[0]), codes.rows), codes.columns);
    codes.rows = weight[0];
    codes.slices = 1;
    grid = {1, std::max<std::int64_t>(1, codes.columns)};
    return true;
  }
  const std::vector<std::int64_t> shape = with_dims(scales, weight.size(), codes.rows, codes.columns);
  if (shape.empty()) return false;
  const std::optional<BlockGrid> found =
      find_grid({codes.slices, codes.rows, codes.columns}, matrices_of(shape), schemes);
  if (found) grid = *found;
  return found.has_value();
}

}  // namespace shard

#include <fmt/format.h>

#include <cstdint>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "libshard/compute/formula_draft.h"
#include "libshard/core/checked.h"

namespace shard {

namespace {

/// Bits of a code, and the number of codes in a group.
using BitsAndGroup = std::pair<int, std::int64_t>;

/// The bits and the size of groups that the configuration states, and that give `group_bits` for a group. The shapes
/// determine only their product.
BitsAndGroup stated_group(const FormulaDraft& draft, std::int64_t group_bits) {
  std::set<BitsAndGroup> fitting;
  for (const QuantizationScheme& scheme : draft.search.facts.schemes) {
    const std::int64_t bits = scheme.bits.value_or(0), size = scheme.group_size.value_or(0);
    if (bits < 1 || bits > 8 || size < 1 || size > group_bits || bits * size != group_bits) continue;
    fitting.emplace(static_cast<int>(bits), size);
  }
  if (fitting.size() > 1) throw draft.unsupported("several stated bits and sizes of groups fit its codes");
  if (!fitting.empty()) return *fitting.begin();
  throw draft.wrong(draft.parts.weight, "the configuration states no bits and size of groups that fit its codes")
      .expected(fmt::format("bits * group_size = {}", group_bits));
}

/// The modes `nvfp4`, `mxfp4` and `mxfp8`. They need no configuration, because the bits of a group differ.
/// \returns the size of groups
std::int64_t make_mlx_floats(FormulaDraft& draft, std::int64_t group_bits) {
  constexpr std::int64_t kOfNvfp4 = 16 * 4, kOfMxfp4 = 32 * 4, kOfMxfp8 = 32 * 8;
  if (group_bits != kOfNvfp4 && group_bits != kOfMxfp4 && group_bits != kOfMxfp8) {
    throw draft.unsupported(fmt::format("a scale is for {} bits of codes, as in none of MLX's modes", group_bits));
  }
  const bool is_nvfp4 = group_bits == kOfNvfp4, is_mxfp8 = group_bits == kOfMxfp8;
  draft.codes.kind = is_mxfp8 ? CodeKind::kFloat8 : CodeKind::kFloat4;
  draft.codes.codes.bits = is_mxfp8 ? 8 : 4;
  draft.codes.scales.are_float8 = is_nvfp4;
  draft.codes.scales.are_exponents = !is_nvfp4;
  return is_nvfp4 ? 16 : 32;
}

}  // namespace

void make_mlx(FormulaDraft& draft) {
  const Dims packed = draft.weight().shape, scales = draft.scale().shape;
  const int last = packed.size() - 1;
  if (last < 1) throw draft.wrong(draft.parts.weight, "the codes are not a matrix");
  const std::int64_t all_bits = checked_mul(packed[last], kPackedWordBits);
  if (scales.size() != packed.size() || scales[last] < 1 || all_bits % scales[last] != 0) {
    throw draft.wrong(draft.parts.scale, "the scales do not fit the weight");
  }
  const std::int64_t group_bits = all_bits / scales[last];
  std::int64_t group = 0;
  if (are_exponents(draft.scale())) {
    group = make_mlx_floats(draft, group_bits);
  } else {
    draft.need(draft.parts.zeros, "its biases are");
    std::tie(draft.codes.codes.bits, group) = stated_group(draft, group_bits);
    draft.codes.added = Leaf{draft.parts.zeros};
  }
  std::vector<std::int64_t> shape(packed.begin(), packed.end());
  shape.back() = checked_mul(scales[last], group);
  draft.set_matrices(shape);
  draft.set_row_groups(group);
  if (draft.codes.scales.are_float8 && draft.parts.second != FormulaDraft::kNone) {
    constexpr float kLargest = 6 * 448;  // The largest code times the largest scale. MLX stores the largest weight.
    draft.set_second(false);
    draft.codes.scales.second_divisor = kLargest;
  }
  if (draft.codes.added) draft.check_matrix(draft.parts.zeros, draft.codes.slices * draft.codes.rows, scales[last]);
}

}  // namespace shard

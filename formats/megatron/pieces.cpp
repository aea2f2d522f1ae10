#include "formats/megatron/pieces.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::megatron {

namespace {

Error misshapen(const Part& part, std::string_view expected) {
  Error error(ErrorCode::kCorruption, "a rank's part of a tensor does not have the shape that its name asks for");
  return error.of_kind(FindingKind::kShapeMismatch)
      .expected(expected)
      .found(fmt::format("[{}]", fmt::join(part.shape, ", ")));
}

/// All of `part` as one box.
Pieces whole_of(const Part& part) {
  return {part.shape, {{std::vector<std::int64_t>(part.shape.size(), 0), part.shape, part.strides, part.first}}};
}

/// Equal parts of dimension `dim`: rank r has [r * size, (r + 1) * size) of the whole.
Pieces cut_along(const Part& part, std::size_t dim, const TensorRank& tensor) {
  if (dim >= part.shape.size()) throw misshapen(part, fmt::format("{} dimensions or more", dim + 1));
  Pieces pieces = whole_of(part);
  pieces.whole[dim] = checked_mul(part.shape[dim], tensor.ranks);
  pieces.pieces.front().offsets[dim] = tensor.rank * part.shape[dim];
  return pieces;
}

/// The whole has two halves of `half * ranks` rows, and a part has `half` rows of each: the first half of the part is
/// at r * half, the second one at half * ranks + r * half.
Pieces cut_halves(const Part& part, const TensorRank& tensor) {
  if (part.shape.empty() || part.shape[0] % 2 != 0) throw misshapen(part, "an even dimension 0");
  if (tensor.ranks == 1) return whole_of(part);
  const std::int64_t half = part.shape[0] / 2, whole_half = checked_mul(half, tensor.ranks);
  Pieces pieces = whole_of(part);
  pieces.whole[0] = checked_mul(whole_half, 2);
  Piece& first = pieces.pieces.front();
  first.sizes[0] = half;
  first.offsets[0] = tensor.rank * half;
  Piece second = first;
  second.offsets[0] += whole_half;
  second.first += half * part.strides[0];
  pieces.pieces.push_back(std::move(second));
  return pieces;
}

}  // namespace

Pieces pieces_of(const Part& part, Cut cut, const TensorRank& tensor) {
  switch (cut) {
    case Cut::kNot:
      return whole_of(part);
    case Cut::kRows:
      return cut_along(part, 0, tensor);
    case Cut::kGatedRows:
      return cut_halves(part, tensor);
    case Cut::kColumns:
      break;
  }
  return cut_along(part, 1, tensor);
}

Pieces pieces_of_expert(const Part& part, Cut cut, const TensorRank& tensor, std::int64_t expert,
                        std::int64_t experts) {
  Pieces pieces = pieces_of(part, cut, tensor);
  pieces.whole.insert(pieces.whole.begin(), experts);
  for (Piece& piece : pieces.pieces) {
    piece.offsets.insert(piece.offsets.begin(), expert);
    piece.sizes.insert(piece.sizes.begin(), 1);
    piece.strides.insert(piece.strides.begin(), 0);
  }
  return pieces;
}

std::vector<Part> packed_experts(const Part& part, bool are_first, std::int64_t count) {
  const std::size_t packed_dim = are_first ? 1 : 0;
  if (part.shape.size() != 2 || part.shape[packed_dim] % count != 0) {
    throw misshapen(part, fmt::format("2 dimensions, dimension {} of {} experts", packed_dim, count));
  }
  // Expert i has the elements from i * inner * outer on. Its matrix is stored transposed: [outer, inner] for first
  // weights, [inner, outer] for second ones, so the strides of the result are swapped.
  const std::int64_t inner = part.shape[packed_dim] / count, outer = part.shape[1 - packed_dim];
  std::vector<Part> experts;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = part.first + i * inner * outer;
    are_first ? experts.push_back({{inner, outer}, {1, inner}, first})
              : experts.push_back({{outer, inner}, {1, outer}, first});
  }
  return experts;
}

}  // namespace shard::megatron

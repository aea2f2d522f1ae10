/// \file
/// Where a rank's part of a tensor lies in the whole one. Pure arithmetic.
///
/// Source: megatron/core/tensor_parallel/layers.py, transformer/mlp.py and transformer/moe/experts.py of core 0.16.1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shard::megatron {

/// How tensor-parallel ranks share a tensor.
enum class Cut : std::uint8_t {
  kNot,        ///< All of them have it.
  kRows,       ///< Equal parts of dimension 0.
  kGatedRows,  ///< The same of each half of dimension 0: a rank has a part of the first and one of the second.
  kColumns,    ///< Equal parts of dimension 1.
};

struct TensorRank {
  std::int64_t rank = 0, ranks = 1;
};

/// A box of the whole tensor; element (i0, i1, ...) of it is number first + sum(i[d] * strides[d]) of the part.
struct Piece {
  std::vector<std::int64_t> offsets, sizes, strides;
  std::int64_t first = 0;

  friend bool operator==(const Piece&, const Piece&) = default;
};

struct Pieces {
  std::vector<std::int64_t> whole;  ///< The whole tensor's shape.
  std::vector<Piece> pieces;
};

/// A part as it is stored.
struct Part {
  std::vector<std::int64_t> shape, strides;
  std::int64_t first = 0;
};

/// \throws Error kCorruption (shape_mismatch)  the part lacks the dimension, or has no halves; sizes overflow.
Pieces pieces_of(const Part& part, Cut cut, const TensorRank& tensor);

/// The same of expert number `expert` of `experts`, who share one tensor with a dimension for experts before the
/// others.
Pieces pieces_of_expert(const Part& part, Cut cut, const TensorRank& tensor, std::int64_t expert, std::int64_t experts);

/// The experts whose first or second weights one tensor holds, as the matrices by which rows are multiplied from the
/// right: each is a transposed linear_fc1.weight or linear_fc2.weight.
/// \pre first weights are [rows, count x columns], second ones [count x columns, rows], and row-major
/// \throws Error kCorruption (shape_mismatch)  the part does not have two dimensions, or not of that many experts.
std::vector<Part> packed_experts(const Part& part, bool are_first, std::int64_t count);

}  // namespace shard::megatron

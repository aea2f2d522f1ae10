/// \file
/// Computes the position of a rank's part in the whole tensor. Pure arithmetic.
///
/// Source: megatron/core/tensor_parallel/layers.py, transformer/mlp.py and transformer/moe/experts.py of Megatron-Core
/// 0.16.1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shard::megatron {

/// How tensor-parallel ranks share a tensor.
enum class Cut : std::uint8_t {
  kNot,   ///< All ranks have the whole tensor.
  kRows,  ///< Equal parts of dimension 0.
  /// Equal parts of each half of dimension 0: a rank has one part of the first half and one of the second.
  kGatedRows,
  kColumns,  ///< Equal parts of dimension 1.
};

struct TensorRank {
  std::int64_t rank = 0, ranks = 1;
};

/// A box of the whole tensor. Its element (i0, i1, ...) is number first + sum(i[d] * strides[d]) of the part.
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

/// \throws Error kCorruption (shape_mismatch)  the part lacks the dimension, or cannot be halved; sizes overflow.
Pieces pieces_of(const Part& part, Cut cut, const TensorRank& tensor);

/// The pieces of expert number `expert` of `experts`, which share one tensor whose first dimension counts the experts.
Pieces pieces_of_expert(const Part& part, Cut cut, const TensorRank& tensor, std::int64_t expert, std::int64_t experts);

/// Divides a tensor with the first or second weights of several experts. The stored matrices multiply rows from the
/// right, so each is a transposed linear_fc1.weight or linear_fc2.weight.
/// \pre first weights are [rows, count x columns], second ones [count x columns, rows], and row-major
/// \throws Error kCorruption (shape_mismatch)  the part does not have two dimensions, or not that many experts.
std::vector<Part> packed_experts(const Part& part, bool are_first, std::int64_t count);

}  // namespace shard::megatron

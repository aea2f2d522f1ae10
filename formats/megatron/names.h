/// \file
/// Interprets Megatron's name of a tensor: the tensor of the whole model to which it belongs, and how ranks share that.
///
/// Source: megatron/core/models/gpt/gpt_model.py, tensor_parallel/layers.py, transformer/*.py, transformer/moe/*.py of
/// Megatron-Core 0.16.1.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shard::megatron {

// The position of a rank's part in the whole tensor. Pure arithmetic.

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

struct Meaning {
  std::string name;        ///< The whole tensor's name. The number of a layer is still the one in its chunk.
  std::optional<Cut> cut;  ///< Empty if no rule is known.
  enum class Experts : std::uint8_t {
    kNone,
    kOne,          ///< The expert with number `expert` on its rank.
    kFirstPacked,  ///< The first weights of all experts of the rank in one tensor, see packed_experts.
    kSecondPacked,
  } experts = Experts::kNone;
  std::int64_t expert = 0;
};

/// The meaning of a name in its current form ("decoder.layers.0.mlp.linear_fc1.weight"). `gated`: see Arguments. The
/// experts of a layer become one tensor "...mlp.experts.experts.linear_fc1.weight", in any of their stored forms.
Meaning meaning_of(std::string_view name, bool gated);

/// How `ranks` share a tensor with a known total number of rows: each has a part of the rows, or all of them. Nothing
/// if neither matches.
std::optional<Cut> cut_by_rows(std::int64_t rows, std::int64_t whole_rows, std::int64_t ranks);

/// The layer's number in a name, counted from the first layer of its chunk: 3 in
/// "decoder.layers.3.mlp.linear_fc2.weight".
std::optional<std::int64_t> layer_in(std::string_view name);
/// The name with a different layer. \pre layer_in(name) is not empty
std::string with_layer(std::string_view name, std::int64_t layer);

/// False for tensors that no optimizer updates: buffers.
bool is_parameter(std::string_view name);
/// True for the data that Transformer Engine stores beside a module's parameters.
bool is_extra_state(std::string_view name);

// The tensor names of Megatron-LM before its models were Megatron-Core's: "language_model.encoder.layers.0. ..."
//
// Source: megatron/legacy/model/{language_model,transformer,gpt_model}.py of Megatron-Core 0.8.

/// True for such a name.
bool is_old_name(std::string_view name);

/// Megatron-Core's name of the same tensor; nothing if it has no such tensor. \pre is_old_name(name)
std::optional<std::string> present_name(std::string_view name);

}  // namespace shard::megatron

#include "formats/megatron/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "libshard/core/checked.h"
#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"

namespace shard::megatron {

namespace {

Error misshapen(const Part& part, std::string_view expected) {
  Error error(ErrorCode::kCorruption, "a rank's part of a tensor does not have the shape that its name implies");
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

namespace {

constexpr std::string_view kLayers = "decoder.layers.", kExperts = ".mlp.experts.", kLocal = "local_experts.";

struct CutRule {
  std::string_view end;  ///< The end of the name, in whole dotted parts.
  Cut cut;
};

/// The first match applies. In gated models linear_fc1 is kGatedRows.
constexpr auto kCutRules = std::to_array<CutRule>({
    {"word_embeddings.weight", Cut::kRows},
    {"position_embeddings.weight", Cut::kNot},
    {"tokentype_embeddings.weight", Cut::kNot},
    {"output_layer.weight", Cut::kRows},
    {"output_layer.bias", Cut::kRows},
    {"linear_qkv.weight", Cut::kRows},
    {"linear_qkv.bias", Cut::kRows},
    {"linear_q_proj.weight", Cut::kRows},
    {"linear_q_up_proj.weight", Cut::kRows},
    {"linear_kv_up_proj.weight", Cut::kRows},
    {"linear_proj.weight", Cut::kColumns},
    {"linear_proj.bias", Cut::kNot},
    {"core_attention.softmax_offset", Cut::kRows},
    {"linear_fc1.weight", Cut::kGatedRows},
    {"linear_fc1.bias", Cut::kGatedRows},
    {"linear_fc2.weight", Cut::kColumns},
    {"linear_fc2.bias", Cut::kNot},
    {"router.weight", Cut::kNot},
    {"router.bias", Cut::kNot},
    {"router.expert_bias", Cut::kNot},
    {"shared_experts.gate_weight", Cut::kNot},
    {"layer_norm_weight", Cut::kNot},
    {"layer_norm_bias", Cut::kNot},
    {"inv_freq", Cut::kNot},
    {"enorm.weight", Cut::kNot},
    {"hnorm.weight", Cut::kNot},
    {"eh_proj.weight", Cut::kRows},
});

/// input_layernorm.weight, final_layernorm.bias, q_layernorm.weight, final_norm.weight, ...
bool is_norm(std::string_view name) {
  return name.ends_with("layernorm.weight") || name.ends_with("layernorm.bias") || name.ends_with("_norm.weight") ||
         name.ends_with("_norm.bias");
}

std::optional<Cut> cut_of(std::string_view name, bool gated) {
  if (is_norm(name)) return Cut::kNot;
  for (const CutRule& rule : kCutRules) {
    if (!ends_with_part(name, rule.end)) continue;
    return rule.cut == Cut::kGatedRows && !gated ? Cut::kRows : rule.cut;
  }
  return std::nullopt;
}

/// The parts of an expert's name after "mlp.experts.".
struct ExpertName {
  std::string_view module;  ///< "linear_fc1.weight"
  Meaning::Experts experts;
  std::int64_t expert = 0;
};

std::optional<ExpertName> expert_name(std::string_view rest) {
  if (rest == "weight1") return ExpertName{"linear_fc1.weight", Meaning::Experts::kFirstPacked};
  if (rest == "weight2") return ExpertName{"linear_fc2.weight", Meaning::Experts::kSecondPacked};
  if (rest.starts_with(kLocal)) {
    rest.remove_prefix(kLocal.size());
    const std::optional<std::int64_t> expert = take_natural(rest);
    if (!expert || !rest.starts_with('.')) return std::nullopt;
    return ExpertName{rest.substr(1), Meaning::Experts::kOne, *expert};
  }
  for (const std::string_view module :
       {"linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight", "linear_fc2.bias"}) {
    if (!rest.starts_with(module)) continue;  // Grouped experts: linear_fc1.weight0, linear_fc1.weight1, ...
    rest.remove_prefix(module.size());
    const std::optional<std::int64_t> expert = take_natural(rest);
    if (expert && rest.empty()) return ExpertName{module, Meaning::Experts::kOne, *expert};
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

Meaning meaning_of(std::string_view name, bool gated) {
  const std::size_t experts = name.find(kExperts);
  const std::size_t end = experts == std::string_view::npos ? 0 : experts + kExperts.size();
  if (const auto expert = end == 0 ? std::nullopt : expert_name(name.substr(end))) {
    return {fmt::format("{}experts.{}", name.substr(0, end), expert->module), cut_of(expert->module, gated),
            expert->experts, expert->expert};
  }
  return {std::string(name), cut_of(name, gated), Meaning::Experts::kNone, 0};
}

std::optional<Cut> cut_by_rows(std::int64_t rows, std::int64_t whole_rows, std::int64_t ranks) {
  if (rows == whole_rows) return Cut::kNot;
  return whole_rows % ranks == 0 && rows == whole_rows / ranks ? std::optional(Cut::kRows) : std::nullopt;
}

std::optional<std::int64_t> layer_in(std::string_view name) {
  if (!name.starts_with(kLayers)) return std::nullopt;
  name.remove_prefix(kLayers.size());
  const std::optional<std::int64_t> layer = take_natural(name);
  return name.starts_with('.') ? layer : std::nullopt;
}

std::string with_layer(std::string_view name, std::int64_t layer) {
  return fmt::format("{}{}{}", kLayers, layer, name.substr(name.find('.', kLayers.size())));
}

bool is_parameter(std::string_view name) {
  return !ends_with_part(name, "router.expert_bias") && !ends_with_part(name, "inv_freq");
}

bool is_extra_state(std::string_view name) { return name.find("_extra_state") != std::string_view::npos; }

namespace {

constexpr std::string_view kModel = "language_model.", kHead = "word_embeddings_for_head.weight";

struct Renaming {
  std::string_view old, present;
};

/// Modules of a layer; the suffixes weight and bias stay the same.
constexpr auto kModules = std::to_array<Renaming>({
    {"input_layernorm", "input_layernorm"},
    {"input_norm", "input_layernorm"},
    {"self_attention.query_key_value", "self_attention.linear_qkv"},
    {"self_attention.dense", "self_attention.linear_proj"},
    {"attention.query_key_value", "self_attention.linear_qkv"},
    {"attention.dense", "self_attention.linear_proj"},
    {"post_attention_layernorm", "pre_mlp_layernorm"},
    {"post_attention_norm", "pre_mlp_layernorm"},
    {"mlp.dense_h_to_4h", "mlp.linear_fc1"},
    {"mlp.dense_4h_to_h", "mlp.linear_fc2"},
});
/// Tensors outside layers, after "language_model.".
constexpr auto kOthers = std::to_array<Renaming>({
    {"embedding.word_embeddings.weight", "embedding.word_embeddings.weight"},
    {"embedding.position_embeddings.weight", "embedding.position_embeddings.weight"},
    {"output_layer.weight", "output_layer.weight"},
    {"encoder.final_layernorm.weight", "decoder.final_layernorm.weight"},
    {"encoder.final_layernorm.bias", "decoder.final_layernorm.bias"},
    {"encoder.final_norm.weight", "decoder.final_layernorm.weight"},
    {"encoder.final_norm.bias", "decoder.final_layernorm.bias"},
});

template <std::size_t kCount>
std::optional<std::string_view> find_present(const std::array<Renaming, kCount>& renamings, std::string_view old) {
  const auto found = std::ranges::find(renamings, old, &Renaming::old);
  return found == renamings.end() ? std::nullopt : std::optional(found->present);
}

/// \param name  "layers.3.mlp.dense_h_to_4h.weight"
std::optional<std::string> in_layer(std::string_view name) {
  constexpr std::string_view kOldLayers = "layers.";
  if (!name.starts_with(kOldLayers)) return std::nullopt;
  name.remove_prefix(kOldLayers.size());
  const std::size_t number = name.find('.'), last = name.rfind('.');
  if (number == std::string_view::npos || last <= number) return std::nullopt;
  const std::string_view parameter = name.substr(last + 1);
  const auto module = find_present(kModules, name.substr(number + 1, last - number - 1));
  if (!module || (parameter != "weight" && parameter != "bias")) return std::nullopt;
  return fmt::format("decoder.layers.{}.{}.{}", name.substr(0, number), *module, parameter);
}

}  // namespace

bool is_old_name(std::string_view name) { return name.starts_with(kModel) || name == kHead; }

std::optional<std::string> present_name(std::string_view name) {
  if (name == kHead) return "output_layer.weight";
  name.remove_prefix(kModel.size());
  std::string block(name);
  if (name.starts_with("transformer.")) block = fmt::format("encoder{}", name.substr(name.find('.')));
  if (block.starts_with("encoder.layers.")) return in_layer(std::string_view(block).substr(block.find('.') + 1));
  const auto other = find_present(kOthers, block);
  return other ? std::optional<std::string>(*other) : std::nullopt;
}

}  // namespace shard::megatron

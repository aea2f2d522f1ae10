#include "formats/megatron/names.h"

#include <fmt/format.h>

#include <array>

#include "libshard/core/parse_number.h"

namespace shard::megatron {

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

/// True if `name` ends with `end`, at the start of one of its dotted parts.
bool ends_with_parts(std::string_view name, std::string_view end) {
  return name == end || (name.ends_with(end) && name[name.size() - end.size() - 1] == '.');
}

/// input_layernorm.weight, final_layernorm.bias, q_layernorm.weight, final_norm.weight, ...
bool is_norm(std::string_view name) {
  return name.ends_with("layernorm.weight") || name.ends_with("layernorm.bias") || name.ends_with("_norm.weight") ||
         name.ends_with("_norm.bias");
}

std::optional<Cut> cut_of(std::string_view name, bool gated) {
  if (is_norm(name)) return Cut::kNot;
  for (const CutRule& rule : kCutRules) {
    if (!ends_with_parts(name, rule.end)) continue;
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
  return !ends_with_parts(name, "router.expert_bias") && !ends_with_parts(name, "inv_freq");
}

bool is_extra_state(std::string_view name) { return name.find("_extra_state") != std::string_view::npos; }

}  // namespace shard::megatron

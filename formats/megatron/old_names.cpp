#include "formats/megatron/old_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace shard::megatron {

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

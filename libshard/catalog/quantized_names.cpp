#include "libshard/catalog/quantized_names.h"

#include <algorithm>
#include <array>

namespace shard {

namespace {

using Role = QuantizedRole;

constexpr std::string_view kWeightPart = "weight", kState = ".quant_state.bitsandbytes__";
constexpr KnownName kDescribed{kState, Role::kDescription, kProves | kAlone};

/// Whole last parts of names of tensors in a weight's module.
constexpr std::array kOfModule{
    // GPTQ, AWQ and similar forms.
    KnownName{"qweight", Role::kWeight, kIsWeight},
    KnownName{"qzeros", Role::kZeroPoint, kPairs | kAlone},
    KnownName{"scales", Role::kScale, kPairs},
    KnownName{"g_idx", Role::kGroupIndex, 0},
    // bitsandbytes, 8 bits.
    KnownName{"SCB", Role::kScale, kPairs | kAlone},
    // HQQ. DeepSeek V4 also has `scale`.
    KnownName{"W_q", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{"scale", Role::kScale, kPairs},
    KnownName{"zero", Role::kZeroPoint, 0},
    // ComfyUI.
    KnownName{"scale_weight", Role::kScale, kPairs},
    KnownName{"scale_input", Role::kActivationScale, 0},
    // Activations and caches.
    KnownName{"input_scale", Role::kActivationScale, kJoins},
    KnownName{"input_global_scale", Role::kActivationScale, kJoins},
    KnownName{"input_zero_point", Role::kActivationScale, kJoins},
    KnownName{"output_scale", Role::kActivationScale, kJoins},
    KnownName{"activation_scale", Role::kActivationScale, kJoins},
    KnownName{"pre_quant_scale", Role::kActivationScale, kJoins},
    KnownName{"k_scale", Role::kCacheScale, kJoins},
    KnownName{"v_scale", Role::kCacheScale, kJoins},
    KnownName{"kv_scale", Role::kCacheScale, kJoins},
    KnownName{"q_scale", Role::kCacheScale, kPairs | kJoins},
    KnownName{"prob_scale", Role::kCacheScale, kJoins},
    // AQLM, HIGGS.
    KnownName{"codes", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{"codebooks", Role::kCodeBook, kPairs},
    KnownName{"tables", Role::kCodeBook, kPairs},
    KnownName{"tables2", Role::kCodeBook, kPairs},
    // EXL2, EXL3.
    KnownName{"q_weight", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{"q_scale_max", Role::kSecondScale, kPairs},
    KnownName{"q_groups", Role::kGroupIndex, 0},
    KnownName{"trellis", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{"suh", Role::kScale, kPairs},
    KnownName{"svh", Role::kScale, kPairs},
    // States of 8-bit optimizers.
    KnownName{"state1", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{"state2", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{"qmap", Role::kCodeBook, kPairs},
    KnownName{"qmap1", Role::kCodeBook, kPairs},
    KnownName{"qmap2", Role::kCodeBook, kPairs},
    KnownName{"absmax1", Role::kScale, kPairs},
    KnownName{"absmax2", Role::kScale, kPairs},
};

/// Suffixes of a parameter's name. Longer ones precede those that they end with.
constexpr std::array kOfParameter{
    // Float8, compressed-tensors, ModelOpt.
    KnownName{"_scale_inv", Role::kScale, kPairs | kAlone},
    KnownName{"_activation_scale", Role::kActivationScale, 0},
    KnownName{"_global_scale", Role::kSecondScale, kPairs | kAloneOfWeight},
    KnownName{"_scale_2", Role::kSecondScale, kPairs | kAloneOfWeight},
    KnownName{"_zero_point", Role::kZeroPoint, kPairs | kAloneOfWeight},
    KnownName{"_packed", Role::kWeight, kIsWeight | kNeedsPair | kAloneOfWeight},
    KnownName{"_shape", Role::kShape, 0},
    KnownName{"_g_idx", Role::kGroupIndex, 0},
    // GPT-OSS; EETQ also has `weight_scales`.
    KnownName{"_blocks", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{"_scales", Role::kScale, kPairs | kAloneOfWeight},
    KnownName{"_bias", Role::kOther, 0},
    // quanto.
    KnownName{"._data._data", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{"._data", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{"._scale", Role::kScale, kPairs},
    KnownName{"._shift", Role::kZeroPoint, kPairs},
    // torchao.
    KnownName{"_qdata_and_metadata", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{"_qdata", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{"_packed_weights", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{"_packed_weight", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{"_scale_and_zero", Role::kScale, kPairs},
    KnownName{"_act_per_tensor_scale", Role::kActivationScale, 0},
    KnownName{"_act_pre_scale", Role::kActivationScale, 0},
    KnownName{"_output_act_quant_scale", Role::kActivationScale, 0},
    KnownName{"_act_quant_scale", Role::kActivationScale, 0},
    KnownName{"_per_tensor_scale", Role::kSecondScale, kPairs},
    KnownName{"_qzeros", Role::kZeroPoint, 0},
    KnownName{"_codebook", Role::kCodeBook, kPairs},
    KnownName{"_sparse_metadata", Role::kOther, 0},
    KnownName{"_compensation", Role::kOther, 0},
    KnownName{":qdata", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{":scale", Role::kScale, kPairs},
    KnownName{":zero_point", Role::kZeroPoint, kPairs},
    // bitsandbytes, 4 bits.
    KnownName{".nested_absmax", Role::kSecondScale, kPairs | kAloneOfWeight},
    KnownName{".absmax", Role::kScale, kPairs | kAloneOfWeight},
    KnownName{".nested_quant_map", Role::kCodeBook, kProves | kAlone},
    KnownName{".quant_map", Role::kCodeBook, kProves | kAlone},
    KnownName{"_scale", Role::kScale, kPairs | kAloneOfWeight},
};

/// Whether the name ends with the parts `part`.
bool ends_with_part(std::string_view name, std::string_view part) {
  if (!name.ends_with(part)) return false;
  return name.size() == part.size() || name[name.size() - part.size() - 1] == '.';
}

std::string_view without_part(std::string_view name, std::string_view part) {
  return name.substr(0, name.size() > part.size() ? name.size() - part.size() - 1 : 0);
}

/// \param base  the name of a parameter.
QuantizedName of_parameter(std::string_view base, const KnownName& known) {
  const bool is_of_weight = ends_with_part(base, kWeightPart);
  return {is_of_weight ? without_part(base, kWeightPart) : base, &known, false, is_of_weight};
}

}  // namespace

QuantizedName take_apart(std::string_view name) {
  if (ends_with_part(name, kWeightPart)) return {without_part(name, kWeightPart), nullptr, true, true};
  const auto whole = std::ranges::find(kOfModule, name.substr(name.rfind('.') + 1), &KnownName::end);
  if (whole != kOfModule.end()) return {without_part(name, whole->end), &*whole, false, false};
  if (const std::size_t at = name.find(kState); at != std::string_view::npos && at > 0) {
    return of_parameter(name.substr(0, at), kDescribed);
  }
  for (const KnownName& known : kOfParameter) {
    if (name.size() <= known.end.size() || !name.ends_with(known.end)) continue;
    const std::string_view base = name.substr(0, name.size() - known.end.size());
    if (!base.ends_with('.')) return of_parameter(base, known);
  }
  return {name, nullptr, false, false};
}

bool is_scale_name(std::string_view name) {
  const QuantizedName parts = take_apart(name);
  if (parts.known == nullptr || parts.known->end == "scale") return false;
  if (parts.known->end == "_scale" && !parts.is_of_weight) return false;  // layer_scale, logit_scale
  constexpr std::array kScales{Role::kScale, Role::kSecondScale, Role::kActivationScale, Role::kCacheScale};
  return std::ranges::find(kScales, parts.known->role) != kScales.end();
}

}  // namespace shard

#include "libshard/compute/unknown_codes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>

#include "libshard/core/checked.h"
#include "libshard/core/contains.h"

namespace shard {

namespace {

using Role = QuantizedRole;

Error of_unknown_form(std::string_view tensor, const std::string& statement) {
  return Error(ErrorCode::kUnsupported, fmt::format("cannot dequantize '{}': its form is unknown", tensor))
      .of_tensor(tensor)
      .because(statement);
}

bool has_complete_module(const QuantizedPart& part) {
  return std::ranges::any_of(part.modules,
                             [](const QuantizedModule& module) { return module.has_weight && module.has_scales; });
}

}  // namespace

bool is_number_of_codes(Role role) {
  return role == Role::kScale || role == Role::kSecondScale || role == Role::kZeroPoint;
}

bool is_stated_plain(const Catalog& catalog, const QuantizedPart& part, const QuantizedModule& module,
                     const StatedSchemes& stated) {
  if (!module.has_weight || module.has_scales) return false;
  const auto is_integers = [&](const QuantizedMember& member) {
    return member.role != Role::kWeight || is_integer(catalog.tensors[member.tensor].dtype);
  };
  return std::ranges::all_of(part.members_of(module), is_integers) && stated.ignores(module.name);
}

std::string unknown_form_of_all(const QuantizedPart& part, const StatedSchemes& stated) {
  return has_complete_module(part) ? std::string() : stated.unknown_form();
}

Error no_formula(QuantizedForm form, std::string_view name, std::string_view tensor, std::string_view why) {
  return Error(ErrorCode::kUnsupported, fmt::format("cannot dequantize '{}': {}", name, why))
      .of_tensor(tensor)
      .because(fmt::format("its form is {}", quantized_form_name(form)));
}

Error incomplete_module(const Catalog& catalog, const QuantizedPart& part, const QuantizedModule& module,
                        const std::string& unknown_form) {
  const std::span<const QuantizedMember> members = part.members_of(module);
  const auto is_meant = [&](const QuantizedMember& member) {
    return module.has_weight ? member.role == Role::kWeight : is_number_of_codes(member.role);
  };
  const auto meant = std::ranges::find_if(members, is_meant);
  const std::string_view tensor = catalog.tensors[(meant == members.end() ? members.begin() : meant)->tensor].name;
  if (!unknown_form.empty()) return of_unknown_form(tensor, unknown_form);
  const bool is_of_other_tool = module.form == QuantizedForm::kOther && tensor.ends_with("qweight");
  if (module.form == QuantizedForm::kHqq || is_of_other_tool) {
    return no_formula(module.form, tensor, tensor, "this form has no formula");
  }
  const bool has_plain = catalog.find(fmt::format("{}.weight", module.name)) != nullptr;
  const std::string_view what = module.has_weight ? "its scales are missing"
                                : has_plain       ? "the weight of these scales is not quantized"
                                                  : "the weight of these scales is missing";
  return Error(ErrorCode::kCorruption, fmt::format("cannot dequantize '{}': {}", tensor, what))
      .of_tensor(tensor)
      .of_kind(FindingKind::kGap);
}

void refuse_unknown_codes(const Catalog& catalog, const QuantizedPart& part, const StatedSchemes& stated) {
  const std::string statement = stated.unknown_form();
  const bool is_first = !has_complete_module(part);
  const auto is_code = [&](const Tensor& tensor) {
    if (!is_integer(tensor.dtype)) return false;
    if (tensor.name.ends_with(".bitmask") && tensor.shape.size() >= 2) return true;
    if (statement.empty()) return false;
    if (is_first) return checked_numel(tensor.shape) > 1;
    const bool is_byte = tensor.dtype == DType::kInt8 || tensor.dtype == DType::kUint8;
    const bool is_plain = part.is_plain(catalog.index_of(tensor));
    return is_byte && is_plain && tensor.shape.size() >= 2 && !tensor.name.ends_with("bias");  // GPT-2's masks
  };
  const auto codes = std::ranges::find_if(catalog.tensors, is_code);
  if (codes == catalog.tensors.end()) return;
  throw of_unknown_form(codes->name, statement.empty() ? "its weights are sparse" : statement);
}

std::string other_kind_of_mx(const Tensor& weight, const Tensor& scale, std::span<const QuantizationScheme> schemes) {
  const auto has_integers = [](const QuantizationScheme& scheme) { return scheme.numbers.starts_with("mx_int"); };
  const auto has_6_bits = [](const QuantizationScheme& scheme) { return scheme.format.starts_with("mxfp6"); };
  // AutoRound's NVFP4_E5M3 has a byte for each scale, and no global scale.
  const auto has_e5m3 = [](const QuantizationScheme& scheme) {
    return scheme.numbers == "nvfp4_v2" || scheme.format.find("e5m3") != std::string::npos;
  };
  if (std::ranges::any_of(schemes, has_integers)) return "integers with exponents have no formula";
  if (std::ranges::any_of(schemes, has_e5m3)) return "scales of E5M3 have no formula";
  if (std::ranges::any_of(schemes, has_6_bits)) return "codes of 6 bits have no formula";
  const Dims codes = weight.shape, scales = scale.shape;
  if (codes.size() != scales.size() || codes.size() == 0) return {};
  const std::int64_t bytes = codes[codes.size() - 1], exponents = scales[codes.size() - 1];
  if (exponents == ceil_div(bytes, 16) || exponents == 0 || bytes % exponents != 0) return {};
  // MXFP6 has 24 bytes for each exponent, and FP4 with exponents for 16 numbers has 8.
  const std::int64_t each = bytes / exponents;
  return each == 24 || each == 8 ? fmt::format("it has {} bytes of codes for each exponent, and MXFP4 has 16", each)
                                 : "";
}

std::string other_kind_of_awq(const Tensor& weight, const Tensor& scale, std::span<const QuantizationScheme> schemes) {
  for (const QuantizationScheme& scheme : schemes) {
    const bool is_gemm = scheme.format.empty() || scheme.format == "gemm" || scheme.format == "GEMM";
    if (!is_gemm) return fmt::format("its version is '{}', not gemm", scheme.format);
  }
  const Dims codes = weight.shape, scales = scale.shape;
  if (codes.size() != 2 || scales.size() != 2 || scales[1] < 1) return {};
  const std::int64_t bits = checked_mul(codes[1], kPackedWordBits) / scales[1];
  if (bits == 4 || !contains(schemes, bits, &QuantizationScheme::bits)) return {};
  return fmt::format("codes of {} bits have no formula", bits);
}

bool has_packed_bytes(std::string_view method) {
  constexpr std::array<std::string_view, 4> kWords{"w4", "W4", "int4", "INT4"};
  return std::ranges::any_of(kWords,
                             [&](std::string_view word) { return method.find(word) != std::string_view::npos; });
}

bool is_beside_weight(std::string_view name) {
  constexpr std::array<std::string_view, 14> kEnds{
      ".pre_quant_scale",     ".svdquant_lora_b",                             // ModelOpt
      "_act_pre_scale",                                                       // torchao
      ".input_rotation",      ".input_prescale",                              // Quark
      ".hadamard_matrix",     ".spinquant_r1_type",    ".spinquant_r4_type",  // AutoRound
      ".channel_scales",                                                      // ParoQuant
      ".act.scales",          ".gelu_impl.scales",                            // AutoAWQ
      ".weight_scale_second", ".weight_offset_second", ".scale_bias",         // msModelSlim's W4A8
  };
  return ends_in_any(name, kEnds);
}

std::string beside_weight_text(std::string_view name) {
  return fmt::format("the module also applies '{}', which a plain weight would lack", name);
}

void refuse_beside_weights(const Catalog& catalog, const QuantizedPart& part) {
  if (part.modules.empty()) return;
  for (std::uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    const std::string_view name = catalog.tensors[i].name;
    if (!is_beside_weight(name)) continue;
    if (!part.is_plain(i) && part.modules[part.module_of[i]].has_weight) continue;
    const std::string_view module = part.is_plain(i) ? name : part.modules[part.module_of[i]].name;
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot dequantize '{}': {}", module, beside_weight_text(name)))
        .of_tensor(name);
  }
}

bool has_tiles_of_comfy(const Catalog& catalog) {
  const auto found = catalog.metadata.find("_quantization_metadata");
  const auto has = [&](std::string_view form) { return found->second.find(form) != std::string::npos; };
  return found != catalog.metadata.end() && (has("\"nvfp4\"") || has("\"mxfp8\""));
}

}  // namespace shard

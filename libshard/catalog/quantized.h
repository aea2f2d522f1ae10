/// \file Decides which tensors of a checkpoint are quantized weights, or belong to some. No other code does. Pure.
///
/// A quantized module is stored as several tensors that have a meaning only together: packed codes, scales, zero
/// points, code books. This file groups them by names, dtypes and shapes, according to the tools that write them. It
/// computes no values. Converting one of these tensors by itself would destroy the weights.
///
/// A name by itself is no proof: `scales`, `absmax` and `*.scale` are also names of plain tensors. The weight in the
/// same module must have a dtype that packs numbers. A few names that only these tools write (`weight_scale_inv`,
/// `quant_map`) count without a weight, because parts of one checkpoint may be read separately. MXFP4 in blocks counts
/// by half (only codes, or only exponents) if the configuration or another module is of that form.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard {

/// The form in which a module is stored. It follows from the tensors. If several tools write it, the name is that of
/// the first one.
enum class QuantizedForm : std::uint8_t {
  kFloat8,         ///< `weight` of a float8 dtype, with `weight_scale_inv`, `weight_scale` or `scale`.
  kMxfp8,          ///< Float8 with exponents (uint8 or float8_e8m0fnu) for 32 numbers each.
  kInt8,           ///< `weight` of int8 with `weight_scale`: compressed-tensors, EETQ, Quark.
  kPackedInts,     ///< compressed-tensors: `weight_packed` of int32, `weight_shape`.
  kNvfp4Packed,    ///< compressed-tensors: `weight_packed` of uint8, `weight_global_scale`, which divides.
  kNvfp4,          ///< ModelOpt: `weight` of uint8, `weight_scale_2`, which multiplies.
  kMxfp4Packed,    ///< compressed-tensors: `weight_packed` of uint8 with exponents.
  kMxfp4Blocks,    ///< GPT-OSS: `NAME_blocks` and `NAME_scales`.
  kFp4Exponents,   ///< DeepSeek V4: `weight` of int8 or uint8 with `scale` of float8_e8m0fnu.
  kBitsandbytes4,  ///< `weight` with `weight.absmax` and `weight.quant_map`.
  kBitsandbytes8,  ///< `weight` of int8 with `SCB`.
  kGptq,           ///< `qweight`, packed down the rows; `g_idx`.
  kAwq,            ///< `qweight`, packed along the rows.
  kMlx,            ///< `weight` of uint32 with `scales`; `biases`, or scales that are exponents.
  kHqq,            ///< `W_q`.
  kQuanto,         ///< `weight._data`.
  kTorchao,        ///< `_weight_qdata`.
  kState,          ///< A state of an 8-bit optimizer: `state1`, `qmap1`, `absmax1`.
  kScales,         ///< Scales without a weight beside them, such as those of activations or of a cache.
  kOther,          ///< Known to be quantized, but in none of the forms above: AQLM, EXL2, EXL3, HIGGS, BitNet.
};
/// Whether compute/find_formulas.h has a formula for weights of that form.
constexpr bool has_formula(QuantizedForm form) {
  return form <= QuantizedForm::kMlx || form == QuantizedForm::kTorchao;
}
/// Its usual name: "GPTQ", "float8 with scales".
std::string_view quantized_form_name(QuantizedForm form);

/// A tensor's part in its module.
enum class QuantizedRole : std::uint8_t {
  kWeight,           ///< The codes.
  kScale,            ///< A number for each group, row, block or tensor.
  kSecondScale,      ///< A scale of scales: global scales, `weight_scale_2`, `nested_absmax`.
  kZeroPoint,        ///< `qzeros`, `weight_zero_point`, `zero`; MLX's `biases`, which are added to products.
  kShape,            ///< The shape of the weight, as numbers.
  kGroupIndex,       ///< The group of each row: `g_idx`.
  kCodeBook,         ///< The number of each code.
  kDescription,      ///< Bytes of JSON: `quant_state.bitsandbytes__nf4`.
  kActivationScale,  ///< `input_scale`, `input_global_scale`.
  kCacheScale,       ///< `k_scale`, `v_scale`.
  kOther,            ///< Any other tensor of the module: its bias, numbers about the form.
};

struct QuantizedMember {
  std::uint32_t tensor;  ///< Index into the catalog's tensors.
  QuantizedRole role;
};

struct QuantizedModule {
  std::string_view name;  ///< The text before `.weight`, or the parameter's name if that is not `weight`. May be empty.
  QuantizedForm form;
  bool has_weight = false, has_scales = false;  ///< One of them may be in a file that is not read, or be lost.
  std::uint32_t first_member = 0, member_count = 0;
};

/// Numbers of a scheme, as a model's configuration states them for all modules or for one group of them.
struct QuantizationScheme {
  std::string format{};  ///< In its own words: "pack-quantized", "gptq_v2". May be empty.
  std::optional<std::int64_t> bits{}, group_size{};
  std::vector<std::int64_t> block{};   ///< Rows and columns of a block that has one scale. May be empty.
  std::optional<bool> is_symmetric{};  ///< compressed-tensors: whether codes have no zero points.
  /// GPTQ's `desc_act`, compressed-tensors' `actorder`: whether a group index (`g_idx`, `weight_g_idx`) gives the
  /// groups.
  std::optional<bool> is_reordered{};
  std::string strategy{};   ///< compressed-tensors: "tensor", "channel", "group", ...: the codes that share a scale.
  std::string numbers{};    ///< AutoRound's `data_type`, the kind of codes: "int", "mx_int". May be empty.
  bool divides = false;     ///< GPTQModel's float8: codes are divided by their scales.
  bool has_powers = false;  ///< DeepSeek's `scale_fmt` "ue8m0": each scale is a power of two, in any dtype.

  /// Whether codes with `width` bits may have this scheme, because it states that number or none.
  bool allows_bits(std::int64_t width) const { return bits.value_or(width) == width; }

  friend bool operator==(const QuantizationScheme&, const QuantizationScheme&) = default;
};

/// Statements of a model's configuration. Default: none.
struct QuantizationFacts {
  bool is_quantized = false;  ///< Whether there is a `quantization_config` or an equivalent.
  std::string method{};       ///< In its own words: "gptq", "NVFP4". May be empty.
  /// Without repetition and those that state nothing; the first kMostSchemes.
  std::vector<QuantizationScheme> schemes{};
  /// Modules that stay plain: names, or regular expressions after "re:". The first kMostIgnored.
  std::vector<std::string> ignored{};
  /// A model multiplies inputs or outputs of modules by matrices. The weights undo it.
  bool transforms_inputs = false;

  static constexpr std::size_t kMostSchemes = 64, kMostIgnored = 1 << 16;
  void add(QuantizationScheme scheme);
  void add_ignored(std::string entry);
};

struct QuantizedPart {
  std::vector<QuantizedModule> modules;  ///< Sorted by their first tensors.
  std::vector<QuantizedMember> members;  ///< Members of one module are adjacent, sorted by tensor.
  std::vector<std::uint32_t> module_of;  ///< By tensor: index into `modules`; kNoIndex for a plain tensor.
  /// Plain tensors of float8 or similar dtypes, in a checkpoint without any scales.
  std::vector<std::uint32_t> lone_floats;

  std::span<const QuantizedMember> members_of(const QuantizedModule& module) const {
    return std::span(members).subspan(module.first_member, module.member_count);
  }
  bool is_plain(std::uint32_t tensor) const { return module_of[tensor] == kNoIndex; }
};

/// Cost: linear in the bytes of the names.
QuantizedPart find_quantized(const Catalog& catalog, const QuantizationFacts& facts = {});

/// Whether a tensor with that name would contain scales if it belonged to a quantized module: `X.weight_scale`,
/// `X.scales`, `X.absmax`. `X.scale` is excluded, because many plain weights have this name.
bool is_scale_name(std::string_view name);

/// Whether numbers of that dtype are a model's plain weights: floating point of 16 bits or more.
bool is_plain_float(DType dtype);

}  // namespace shard

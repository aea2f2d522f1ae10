#include "libshard/catalog/quantized.h"

#include <algorithm>
#include <array>
#include <utility>

#include "libshard/core/contains.h"
#include "libshard/core/hash_table.h"

namespace shard {

namespace {

// The names of tensors in quantized modules, by tool.

/// Evidence in a name. Bits of KnownName::marks.
enum NameMark : std::uint8_t {
  kIsWeight = 1,        ///< It is the weight itself, if its dtype packs numbers.
  kNeedsPair = 2,       ///< With kIsWeight: only beside one that `kPairs`, or if kAloneOfWeight holds.
  kPairs = 4,           ///< It forms a module with a weight that packs numbers.
  kProves = 8,          ///< It forms a module with a weight of any dtype.
  kAlone = 16,          ///< It forms a module without any weight.
  kAloneOfWeight = 32,  ///< Like kAlone if the parameter's name is `weight`. With kIsWeight, it then needs no pair.
  kJoins = 64,          ///< In a checkpoint with other quantized tensors, it is quantized too.
};

struct KnownName {
  std::string_view end;
  QuantizedRole role;
  std::uint8_t marks;
};

/// A name, split into its parts.
struct QuantizedName {
  std::string_view module;           ///< See QuantizedModule::name.
  const KnownName* known = nullptr;  ///< Null: `weight`, or a parameter with an unknown name.
  bool is_weight = false;            ///< The last part is `weight`.
  bool is_of_weight = false;         ///< With `known`: it belongs to a parameter with the name `weight`.
};

using Role = QuantizedRole;

constexpr std::string_view kWeightPart = "weight", kState = ".quant_state.bitsandbytes__";
constexpr std::string_view kBlocksEnd = "_blocks", kScalesEnd = "_scales", kScbEnd = "_scb";
constexpr KnownName kDescribed{kState, Role::kDescription, kProves | kAlone};

/// Whole last parts of names of tensors in a weight's module.
constexpr std::array kOfModule{
    // GPTQ, AWQ and similar forms.
    KnownName{"qweight", Role::kWeight, kIsWeight},
    KnownName{"qzeros", Role::kZeroPoint, kPairs | kAlone},
    KnownName{"scales", Role::kScale, kPairs},
    KnownName{"g_idx", Role::kGroupIndex, 0},
    // MLX also has `scales`.
    KnownName{"biases", Role::kZeroPoint, 0},
    KnownName{"global_scale", Role::kSecondScale, 0},
    // bitsandbytes, 8 bits.
    KnownName{"SCB", Role::kScale, kPairs | kAlone},
    // HQQ. DeepSeek V4 also has `scale`.
    KnownName{"W_q", Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{"scale", Role::kScale, kPairs},
    KnownName{"zero", Role::kZeroPoint, 0},
    KnownName{"scale_q", Role::kScale, kPairs},
    KnownName{"zero_q", Role::kZeroPoint, kPairs},
    KnownName{"zero_scale", Role::kScale, kPairs},
    // msModelSlim.
    KnownName{"weight_offset", Role::kZeroPoint, 0},
    // ComfyUI.
    KnownName{"scale_weight", Role::kScale, kPairs},
    KnownName{"scale_input", Role::kActivationScale, 0},
    // Mistral's own files.
    KnownName{"qscale_weight", Role::kScale, kPairs},
    KnownName{"qscale_act", Role::kActivationScale, 0},
    // Activations and caches.
    KnownName{"input_scale", Role::kActivationScale, kJoins},
    KnownName{"input_scale_ub", Role::kActivationScale, kJoins},
    KnownName{"input_global_scale", Role::kActivationScale, kJoins},
    KnownName{"input_zero_point", Role::kActivationScale, kJoins},
    KnownName{"output_scale", Role::kActivationScale, kJoins},
    KnownName{"activation_scale", Role::kActivationScale, kJoins},
    KnownName{"input_activation_scale", Role::kActivationScale, kJoins},
    KnownName{"output_activation_scale", Role::kActivationScale, kJoins},
    KnownName{"pre_quant_scale", Role::kActivationScale, kJoins},
    KnownName{"k_scale", Role::kCacheScale, kJoins},
    KnownName{"v_scale", Role::kCacheScale, kJoins},
    KnownName{"kv_scale", Role::kCacheScale, kJoins},
    KnownName{"q_scale", Role::kCacheScale, kPairs | kJoins},
    KnownName{"prob_scale", Role::kCacheScale, kJoins},
    KnownName{"prob_output_scale", Role::kCacheScale, kJoins},
    KnownName{"kv_cache_scaling_factor", Role::kCacheScale, kJoins},
    KnownName{"k_global_scale", Role::kCacheScale, kJoins},
    KnownName{"v_global_scale", Role::kCacheScale, kJoins},
    KnownName{"q_global_scale", Role::kCacheScale, kJoins},
    KnownName{"k_zero_point", Role::kCacheScale, kJoins},
    KnownName{"v_zero_point", Role::kCacheScale, kJoins},
    KnownName{"q_zero_point", Role::kCacheScale, kJoins},
    // ComfyUI: an empty tensor of the checkpoint's dtype.
    KnownName{"scaled_fp8", Role::kOther, 0},
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
    KnownName{"_input_scale", Role::kActivationScale, 0},
    KnownName{"_global_scale", Role::kSecondScale, kPairs | kAloneOfWeight},
    KnownName{"_scale_2", Role::kSecondScale, kPairs | kAloneOfWeight},
    KnownName{"_zero_point", Role::kZeroPoint, kPairs | kAloneOfWeight},
    KnownName{"_packed", Role::kWeight, kIsWeight | kNeedsPair | kAloneOfWeight},
    KnownName{"_shape", Role::kShape, 0},
    KnownName{"_g_idx", Role::kGroupIndex, 0},
    // GPT-OSS; EETQ also has `weight_scales`.
    KnownName{kBlocksEnd, Role::kWeight, kIsWeight | kNeedsPair},
    KnownName{kScalesEnd, Role::kScale, kPairs | kAloneOfWeight},
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
    // bitsandbytes as GPTQModel stores it.
    KnownName{"_nested_absmax", Role::kSecondScale, kPairs | kAloneOfWeight},
    KnownName{"_absmax", Role::kScale, kPairs | kAloneOfWeight},
    KnownName{"_nested_quant_map", Role::kCodeBook, kProves | kAloneOfWeight},
    KnownName{"_quant_map", Role::kCodeBook, kProves | kAloneOfWeight},
    KnownName{"_quant_state", Role::kDescription, kProves | kAloneOfWeight},
    KnownName{kScbEnd, Role::kScale, kPairs | kAloneOfWeight},
    KnownName{"_scale", Role::kScale, kPairs | kAloneOfWeight},
};
static_assert([] {
  for (std::size_t i = 0; i < kOfParameter.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (kOfParameter[i].end.ends_with(kOfParameter[j].end)) return false;
    }
  }
  return true;
}());

std::string_view without_part(std::string_view name, std::string_view part) {
  return name.substr(0, name.size() > part.size() ? name.size() - part.size() - 1 : 0);
}

/// \param base  the name of a parameter.
QuantizedName of_parameter(std::string_view base, const KnownName& known) {
  const bool is_of_weight = ends_with_part(base, kWeightPart);
  return {is_of_weight ? without_part(base, kWeightPart) : base, &known, false, is_of_weight};
}

QuantizedName take_apart(std::string_view name) {
  if (ends_with_part(name, kWeightPart)) return {without_part(name, kWeightPart), nullptr, true, true};
  const auto whole = std::ranges::find(kOfModule, last_part(name), &KnownName::end);
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

using Form = QuantizedForm;

bool is_small_float(DType dtype) { return is_float(dtype) && !is_plain_float(dtype); }

/// Whether an element may be a code that needs a scale, or several packed codes.
bool packs_numbers(DType dtype) { return !is_plain_float(dtype) && !is_complex(dtype) && dtype != DType::kBool; }

// ---- The form of a module.

/// The tensors of a module that decide its form; null if there are none.
struct Parts {
  const Tensor *weight = nullptr, *scale = nullptr;
  std::string_view weight_end;  ///< KnownName::end of the weight. Empty if the name is unknown.
  bool has_second_scale = false, has_group_index = false, has_code_book = false, has_scb = false;

  void add(const Tensor& tensor, const QuantizedName& name, Role role) {
    has_second_scale = has_second_scale || role == Role::kSecondScale;
    has_group_index = has_group_index || role == Role::kGroupIndex;
    has_code_book = has_code_book || role == Role::kCodeBook || role == Role::kDescription;
    if (role == Role::kWeight && weight == nullptr) {
      weight = &tensor;
      if (name.known != nullptr) weight_end = name.known->end;
    }
    if (role != Role::kScale) return;
    has_scb = has_scb || name.known->end == "SCB" || name.known->end == kScbEnd;
    if (scale == nullptr) scale = &tensor;
  }
};

/// The form of a weight called `qweight`. Rows or columns pack several codes each; scales have a column per output.
Form form_of_qweight(const Parts& parts) {
  if (parts.weight->dtype != DType::kInt32) return Form::kOther;
  if (parts.has_group_index || parts.scale == nullptr) return Form::kGptq;
  const Dims codes = parts.weight->shape, scales = parts.scale->shape;
  if (codes.size() != 2 || scales.size() != 2) return Form::kGptq;
  return codes[1] == scales[1] ? Form::kGptq : Form::kAwq;
}

bool are_exponents(const Tensor* scale) {
  return scale != nullptr && (scale->dtype == DType::kUint8 || scale->dtype == DType::kFloat8E8m0fnu);
}

/// Whether the weight has a scale for each `columns` numbers of a row.
bool are_of_row_groups(const Tensor& scale, const Tensor& weight, std::int64_t columns) {
  const int last = weight.shape.size() - 1;
  if (last < 0 || scale.shape.size() != weight.shape.size()) return false;
  for (int d = 0; d < last; ++d) {
    if (scale.shape[d] != weight.shape[d]) return false;
  }
  return scale.shape[last] == (weight.shape[last] + columns - 1) / columns;
}

Form form_of_packed(const Parts& parts) {
  if (parts.weight->dtype != DType::kUint8) return Form::kPackedInts;
  return are_exponents(parts.scale) && !parts.has_second_scale ? Form::kMxfp4Packed : Form::kNvfp4Packed;
}

/// The form of a weight with the name `weight`, or a name of its own.
Form form_of_plain_name(const Parts& parts) {
  const DType dtype = parts.weight->dtype;
  if (parts.has_scb) return Form::kBitsandbytes8;
  if (dtype == DType::kUint32 && parts.scale != nullptr && parts.scale->name.ends_with("scales")) return Form::kMlx;
  if (parts.has_code_book) return is_integer(dtype) && dtype != DType::kUint8 ? Form::kOther : Form::kBitsandbytes4;
  const bool is_byte = dtype == DType::kUint8 || dtype == DType::kInt8 || dtype == DType::kFloat4E2m1fnX2;
  if (is_byte && are_exponents(parts.scale)) return Form::kFp4Exponents;
  if (is_small_float(dtype) && dtype_block(dtype).bytes == 1 && dtype != DType::kFloat4E2m1fnX2) {
    return are_exponents(parts.scale) && are_of_row_groups(*parts.scale, *parts.weight, 32) ? Form::kMxfp8
                                                                                            : Form::kFloat8;
  }
  const bool has_float8_scales = parts.scale != nullptr && parts.scale->dtype == DType::kFloat8E4m3fn;
  // ModelOpt's INT4 also has scales of two levels, for other groups.
  const bool may_have_second = parts.scale == nullptr || are_of_row_groups(*parts.scale, *parts.weight, 8);
  if (is_byte && (has_float8_scales || (parts.has_second_scale && may_have_second))) return Form::kNvfp4;
  return dtype == DType::kInt8 ? Form::kInt8 : Form::kOther;
}

Form form_of(const Parts& parts) {
  const std::string_view end = parts.weight_end;
  if (parts.weight == nullptr) {
    if (parts.has_scb) return Form::kBitsandbytes8;
    return parts.has_code_book ? Form::kBitsandbytes4 : Form::kScales;
  }
  if (end.empty()) return form_of_plain_name(parts);
  if (end == "qweight") return form_of_qweight(parts);
  if (end == "_packed") return form_of_packed(parts);
  if (end == kBlocksEnd) return Form::kMxfp4Blocks;
  if (end == "W_q") return Form::kHqq;
  if (end.starts_with("._data")) return Form::kQuanto;
  if (end.ends_with("qdata")) return Form::kTorchao;
  return end.starts_with("state") ? Form::kState : Form::kOther;
}

// ---- From tensors to modules.

/// Evidence about one module from the names seen so far.
struct Draft {
  bool has_weight = false;  ///< A weight whose dtype packs numbers, under `weight` or a name of its own.
  bool has_floats = false;  ///< Such a weight of a different dtype.
  bool has_named = false;   ///< A weight whose name proves more: `qweight`.
  bool needs_pair = false;  ///< With has_named.
  bool has_blocks = false;  ///< A weight in blocks, as GPT-OSS stores MXFP4.
  bool pairs = false, proves = false, is_alone = false;
  std::uint32_t module = kNoIndex;  ///< Index into the result's modules, set at its first tensor.

  bool is_quantized() const {
    if (has_named && (!needs_pair || pairs || proves)) return true;
    if (has_weight && pairs) return true;
    if ((has_weight || has_floats) && proves) return true;
    return is_alone && !has_weight && !has_floats && !has_named;
  }
};

class Finder {
 public:
  Finder(const Catalog& catalog, const QuantizationFacts& facts)
      : catalog_(catalog), is_certain_(facts.is_quantized), has_blocks_(facts.method == "mxfp4") {}

  QuantizedPart run() {
    part_.module_of.assign(catalog_.tensors.size(), kNoIndex);
    names_.reserve(catalog_.tensors.size());
    for (const Tensor& tensor : catalog_.tensors) names_.push_back(with_parameter(take_apart(tensor.name)));
    const bool has_known = std::ranges::any_of(names_, [](const QuantizedName& name) { return name.known != nullptr; });
    if (has_known || is_certain_) {
      for (std::uint32_t i = 0; i < catalog_.tensors.size(); ++i) note(i);
      for (const auto& [name, draft] : drafts_.entries()) {
        is_certain_ = is_certain_ || draft.is_quantized();
        has_blocks_ = has_blocks_ || (draft.is_quantized() && draft.has_blocks);
      }
    }
    if (!is_certain_) return without_modules();
    for (std::uint32_t i = 0; i < catalog_.tensors.size(); ++i) assign(i);
    gather();
    return std::move(part_);
  }

 private:
  static constexpr Role kPlain{0xFF};

  /// ModelOpt gives the scales of a parameter `NAME` that is not `weight` the names `NAME_weight_scale` and
  /// `NAME_weight_scale_2`.
  QuantizedName with_parameter(QuantizedName name) const {
    constexpr std::string_view kEnd = "_weight";
    if (name.known == nullptr || name.is_of_weight || !name.module.ends_with(kEnd)) return name;
    const std::string_view parameter = name.module.substr(0, name.module.size() - kEnd.size());
    const bool is_of_modelopt = catalog_.find(name.module) == nullptr && catalog_.find(parameter) != nullptr;
    if (is_of_modelopt) name.module = parameter;
    return name;
  }

  /// The result if nothing is quantized.
  QuantizedPart without_modules() {
    for (std::uint32_t i = 0; i < catalog_.tensors.size(); ++i) {
      if (is_small_float(catalog_.tensors[i].dtype)) part_.lone_floats.push_back(i);
    }
    return std::move(part_);
  }

  void note(std::uint32_t index) {
    const Tensor& tensor = catalog_.tensors[index];
    const QuantizedName& name = names_[index];
    Draft& draft = drafts_[name.module];
    const std::uint8_t marks = name.known == nullptr ? std::uint8_t{kIsWeight} : name.known->marks;
    const bool packs = packs_numbers(tensor.dtype);
    if ((marks & kIsWeight) != 0 && name.known == nullptr) {
      const bool may_pack = packs && (name.is_weight || tensor.shape.size() >= 2);
      (may_pack ? draft.has_weight : draft.has_floats) = true;
    } else if ((marks & kIsWeight) != 0) {
      (packs || name.known->end == "W_q" ? draft.has_named : draft.has_floats) = true;
      // The scales of HQQ's own files and of SINQ are objects, or have another owner.
      const bool is_of_hqq = name.known->end == "W_q" && is_integer(tensor.dtype);
      const bool stands_alone = is_of_hqq || ((marks & kAloneOfWeight) != 0 && name.is_of_weight);
      draft.needs_pair = (marks & kNeedsPair) != 0 && !stands_alone;
    }
    draft.has_blocks = draft.has_blocks || ((marks & kIsWeight) != 0 && is_half_of_blocks(index));
    draft.pairs = draft.pairs || (marks & kPairs) != 0;
    draft.proves = draft.proves || (marks & kProves) != 0;
    draft.is_alone = draft.is_alone || (marks & kAlone) != 0 || ((marks & kAloneOfWeight) != 0 && name.is_of_weight);
  }

  /// Decides on one tensor, and stores its role in roles_.
  void assign(std::uint32_t index) {
    roles_.push_back(kPlain);
    const QuantizedName& name = names_[index];
    if (Draft* const own = drafts_.find(name.module); own->is_quantized()) {
      return add(index, name.module, *own, name.known == nullptr ? role_of_unknown(index) : name.known->role);
    }
    const std::string_view whole = catalog_.tensors[index].name;
    const std::size_t dot = whole.rfind('.');
    const std::string_view owner = whole.substr(0, dot == std::string_view::npos ? 0 : dot);
    if (Draft* const above = drafts_.find(owner); above != nullptr && above->is_quantized()) {
      return add(index, owner, *above, Role::kOther);
    }
    if (is_lost_half(index)) {
      add(index, name.module, *drafts_.find(name.module), name.known == nullptr ? Role::kWeight : name.known->role);
    }
  }

  /// The tensor at a module's own name, or its `weight`, may also be a second weight beside `qweight`.
  Role role_of_unknown(std::uint32_t index) const {
    const bool packs = packs_numbers(catalog_.tensors[index].dtype);
    return packs || drafts_.find(names_[index].module)->proves ? Role::kWeight : Role::kOther;
  }

  /// Whether the name is proof of a quantized module, although the weight's dtype does not pack numbers.
  static bool only_tools_write(const QuantizedName& name) {
    if (name.known == nullptr) return false;
    const std::uint8_t marks = name.known->marks;
    if ((marks & kIsWeight) != 0 && (marks & kNeedsPair) == 0) return true;
    return (marks & kAlone) != 0 || ((marks & kAloneOfWeight) != 0 && name.is_of_weight);
  }

  /// Codes in blocks or their exponents, each of which means nothing without the other one.
  bool is_half_of_blocks(std::uint32_t index) const {
    const QuantizedName& name = names_[index];
    const Tensor& tensor = catalog_.tensors[index];
    if (name.known == nullptr || name.is_of_weight || tensor.dtype != DType::kUint8) return false;
    const Dims shape = tensor.shape;
    if (name.known->end == kScalesEnd) return shape.size() >= 2;
    return name.known->end == kBlocksEnd && shape.size() >= 3 && shape[shape.size() - 1] == 16;
  }

  /// In a quantized checkpoint: a scale that needs no weight, or a weight whose scales are missing.
  bool is_lost_half(std::uint32_t index) const {
    const QuantizedName& name = names_[index];
    const Tensor& tensor = catalog_.tensors[index];
    const bool is_number =
        is_float(tensor.dtype) || (name.known != nullptr && name.known->end.ends_with("_zero_point"));
    if (name.known != nullptr && (name.known->marks & kJoins) != 0 && is_number) return true;
    if (is_small_float(tensor.dtype) || only_tools_write(name)) return true;
    if (has_blocks_ && is_half_of_blocks(index)) return true;
    return name.is_weight && tensor.shape.size() >= 2 && packs_numbers(tensor.dtype);
  }

  void add(std::uint32_t index, std::string_view name, Draft& draft, Role role) {
    if (draft.module == kNoIndex) {
      draft.module = static_cast<std::uint32_t>(part_.modules.size());
      part_.modules.push_back({.name = name, .form = Form::kOther});
      parts_.emplace_back();
    }
    QuantizedModule& module = part_.modules[draft.module];
    module.has_weight = module.has_weight || role == Role::kWeight;
    module.has_scales = module.has_scales || role == Role::kScale || role == Role::kSecondScale;
    ++module.member_count;
    part_.module_of[index] = draft.module;
    roles_.back() = role;
    parts_[draft.module].add(catalog_.tensors[index], names_[index], role);
  }

  /// Makes each module's tensors adjacent.
  void gather() {
    std::uint32_t first = 0;
    for (std::size_t i = 0; i < part_.modules.size(); ++i) {
      QuantizedModule& module = part_.modules[i];
      module.form = form_of(parts_[i]);
      module.first_member = first;
      first += std::exchange(module.member_count, 0);
    }
    part_.members.resize(first);
    for (std::uint32_t i = 0; i < part_.module_of.size(); ++i) {
      if (part_.is_plain(i)) continue;
      QuantizedModule& module = part_.modules[part_.module_of[i]];
      part_.members[module.first_member + module.member_count++] = {i, roles_[i]};
    }
  }

  const Catalog& catalog_;
  bool is_certain_;  ///< Something is quantized.
  bool has_blocks_;  ///< Some weights are MXFP4 in blocks.
  HashMap<std::string_view, Draft> drafts_;
  std::vector<QuantizedName> names_;  ///< By tensor.
  std::vector<Role> roles_;           ///< By tensor, as far as assigned.
  std::vector<Parts> parts_;          ///< By module.
  QuantizedPart part_;
};

}  // namespace

void QuantizationFacts::add(QuantizationScheme scheme) {
  if (schemes.size() < kMostSchemes && !contains(schemes, scheme)) schemes.push_back(std::move(scheme));
}

void QuantizationFacts::add_ignored(std::string entry) {
  if (ignored.size() < kMostIgnored) ignored.push_back(std::move(entry));
}

bool is_scale_name(std::string_view name) {
  const QuantizedName parts = take_apart(name);
  if (parts.known == nullptr || parts.known->end == "scale") return false;
  if (parts.known->end == "_scale" && !parts.is_of_weight) return false;  // layer_scale, logit_scale
  constexpr std::array kScales{Role::kScale, Role::kSecondScale, Role::kActivationScale, Role::kCacheScale};
  return contains(kScales, parts.known->role);
}

std::string_view quantized_form_name(QuantizedForm form) {
  constexpr std::array<std::string_view, 20> kNames{"float8 with scales",
                                                    "MXFP8",
                                                    "int8 with scales",
                                                    "packed integers of compressed-tensors",
                                                    "NVFP4 of compressed-tensors",
                                                    "NVFP4 of ModelOpt",
                                                    "MXFP4 of compressed-tensors",
                                                    "MXFP4 in blocks",
                                                    "FP4 with exponents",
                                                    "bitsandbytes, 4 bits",
                                                    "bitsandbytes, 8 bits",
                                                    "GPTQ",
                                                    "AWQ",
                                                    "MLX",
                                                    "HQQ",
                                                    "quanto",
                                                    "torchao",
                                                    "a state of an 8-bit optimizer",
                                                    "scales without a weight",
                                                    "quantized weights"};
  static_assert(kNames.size() == static_cast<std::size_t>(Form::kOther) + 1);
  return kNames[static_cast<std::size_t>(form)];
}

bool is_plain_float(DType dtype) {
  constexpr std::array kPlain{DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64};
  return contains(kPlain, dtype);
}

QuantizedPart find_quantized(const Catalog& catalog, const QuantizationFacts& facts) {
  return Finder(catalog, facts).run();
}

}  // namespace shard

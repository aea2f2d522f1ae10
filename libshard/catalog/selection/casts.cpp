#include "libshard/catalog/selection/casts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "libshard/catalog/selection/glob.h"
#include "libshard/core/nearest.h"
#include "libshard/core/short_text.h"

namespace shard {

namespace {

constexpr std::string_view kKeep = "keep";
constexpr const char* kKeepHint = "leave such tensors as they are with cast rules GLOB=keep";
constexpr std::size_t kMostGlobs = 16;  ///< The limit on globs in a hint.

// ---- Rules.

bool has_wildcard(std::string_view glob) { return glob.find_first_of("*?[") != std::string_view::npos; }

/// The name nearest to `typed` that at least half of it agrees with, or empty.
std::string nearest_name(const std::vector<SelectedTensor>& tensors, std::string_view typed) {
  std::string_view nearest;
  int limit = std::max(1, static_cast<int>(typed.size()) / 2 - 1);
  for (const SelectedTensor& tensor : tensors) {
    const int found = edit_distance(typed, tensor.name, limit);
    if (found > limit) continue;
    nearest = tensor.name;
    limit = found - 1;
  }
  return std::string(nearest);
}

struct CastRule {
  std::string_view text, glob;
  std::optional<DType> dtype;  ///< Empty: keep the dtype.
  bool exact;
  bool used = false;

  std::string_view wanted() const { return text.substr(glob.size() + 1); }
};

std::vector<CastRule> parse_casts(const std::vector<std::string>& texts) {
  std::vector<CastRule> rules;
  for (const std::string& text : texts) {
    const std::size_t equals = text.rfind('=');
    if (equals == std::string::npos || equals == 0) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("cast rule '{}' is malformed", text))
          .expected("GLOB=DTYPE")
          .found(text);
    }
    const std::string_view glob = std::string_view(text).substr(0, equals);
    const std::string_view wanted = std::string_view(text).substr(equals + 1);
    const std::optional<DType> dtype = dtype_of_name(wanted);
    if (!dtype && wanted != kKeep) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("cast rule '{}': '{}' is not a dtype", text, wanted))
          .expected("a torch dtype such as bfloat16, float32, float8_e4m3fn, or keep")
          .found(wanted);
    }
    rules.push_back({text, glob, dtype, !has_wildcard(glob)});
  }
  return rules;
}

/// The glob that the user probably meant by a rule without a match. Empty if there is no good guess.
std::string meant_glob(const std::vector<SelectedTensor>& tensors, const CastRule& rule) {
  if (rule.exact) return nearest_name(tensors, rule.glob);
  std::string crossing = crossing_dots(rule.glob);
  const GlobSet globs({crossing});
  const bool helps = std::ranges::any_of(tensors, [&](const SelectedTensor& each) { return globs.matches(each.name); });
  return helps ? crossing : nearest_name(tensors, rule.glob);
}

GlobSet globs_of(const std::vector<CastRule>& rules) {
  GlobSet globs;
  for (const CastRule& rule : rules) globs.add(rule.glob);
  return globs;
}

/// Returns the rule that decides: one that keeps the dtype, or else the first one that matches. A pattern skips
/// integers and bools, because those are mostly ids and masks. \returns null if no rule decides.
const CastRule* deciding_rule(std::vector<CastRule>& rules, const GlobSet& globs, std::string_view name, DType dtype) {
  const bool is_number = !is_integer(dtype) && dtype != DType::kBool;
  const CastRule *first = nullptr, *keeping = nullptr;
  for (const std::size_t i : globs.matching(name)) {
    CastRule& rule = rules[i];
    rule.used = true;
    if (keeping == nullptr && !rule.dtype) keeping = &rule;
    if (first == nullptr && (is_number || rule.exact)) first = &rule;
  }
  return keeping != nullptr ? keeping : first;
}

// ---- Effects of a conversion.

bool changes(const Catalog& source, const SelectedTensor& tensor) {
  return tensor.dtype != source.tensors[tensor.source].dtype;
}

/// The number of binary digits of whole numbers that a dtype represents exactly: all numbers up to 2^digits.
int exact_digits(DType dtype) {
  switch (component_of(dtype)) {
    case DType::kFloat64:
      return 53;
    case DType::kFloat32:
      return 24;
    case DType::kFloat16:
      return 11;
    case DType::kBfloat16:
      return 8;
    default:
      return 3;  // Float8 types represent this many or fewer.
  }
}

/// Whether `to` represents every number of the integer dtype `from`.
bool holds_all(DType from, DType to) {
  if (to == DType::kBool) return false;
  const int digits = 8 * element_bytes(from) - (is_signed(from) ? 1 : 0);
  if (!is_integer(to)) return digits <= exact_digits(to);
  if (is_signed(from) && !is_signed(to)) return false;
  return digits <= 8 * element_bytes(to) - (is_signed(to) ? 1 : 0);
}

/// Whether floating-point numbers of `from` are rounded in `to`.
bool rounds(DType from, DType to) {
  if (!is_plain_float(from)) return false;
  return !is_plain_float(component_of(to)) || exact_digits(to) < exact_digits(from);
}

/// A glob over resulting names for the tensors of the module that `tensor` belongs to, and for the same tensors in
/// other layers.
std::string glob_of_module(const Catalog& source, const SelectedTensor& tensor, const QuantizedModule& module) {
  const std::string_view rest = source.tensors[tensor.source].name.substr(module.name.size());
  if (module.name.empty() || rest.empty() || !tensor.name.ends_with(rest)) return glob_of_layers(tensor.name);
  const std::string_view name = tensor.name.substr(0, tensor.name.size() - rest.size());
  return glob_of_layers(name) + (rest.front() == '.' ? ".**" : "*");
}

/// Adds a new glob, up to one more than a hint can contain.
void add_glob(std::vector<std::string>& globs, std::string glob) {
  if (globs.size() > kMostGlobs || std::ranges::find(globs, glob) != globs.end()) return;
  globs.push_back(std::move(glob));
}

/// The globs for a hint, or none if there are too many.
std::vector<std::string> hinted(const std::vector<std::string>& globs) {
  return globs.size() > kMostGlobs ? std::vector<std::string>() : globs;
}

/// The error for the tensors of quantized modules among those that would be converted.
class Refusal {
 public:
  Refusal(const Catalog& source, const QuantizedPart& quantized) : source_(source), quantized_(quantized) {}

  void add(const SelectedTensor& tensor) {
    if (first_ == nullptr) first_ = &tensor;
    ++count_;
    add_glob(globs_, glob_of_module(source_, tensor, module_of(tensor)));
  }

  void throw_if_any() const {
    if (first_ == nullptr) return;
    const QuantizedModule& module = module_of(*first_);
    Error error(ErrorCode::kUnsupported,
                fmt::format("cannot convert the quantized tensor '{}' from {} to {}{}", first_->name,
                            dtype_name(source_.tensors[first_->source].dtype), dtype_name(first_->dtype),
                            count_ > 1 ? fmt::format("; {} more cannot either", count_ - 1) : std::string()));
    error.of_tensor(first_->name);
    error.because(fmt::format("the tensors of the module '{}' ({}) have a meaning only together", module.name,
                              quantized_form_name(module.form)));
    throw QuantizedCast(error.hint(kKeepHint), hinted(globs_));
  }

 private:
  const QuantizedModule& module_of(const SelectedTensor& tensor) const {
    return quantized_.modules[quantized_.module_of[tensor.source]];
  }

  const Catalog& source_;
  const QuantizedPart& quantized_;
  const SelectedTensor* first_ = nullptr;
  std::size_t count_ = 0;
  std::vector<std::string> globs_;
};

void refuse_lone(const Catalog& source, std::span<const SelectedTensor> tensors,
                 const std::vector<std::uint32_t>& lone) {
  const SelectedTensor* first = nullptr;
  std::vector<std::string> globs;
  for (const SelectedTensor& tensor : tensors) {
    if (!changes(source, tensor) || !std::ranges::binary_search(lone, tensor.source)) continue;
    if (first == nullptr) first = &tensor;
    add_glob(globs, glob_of_layers(tensor.name));
  }
  if (first == nullptr) return;
  Error error(ErrorCode::kUnsupported, fmt::format("cannot convert quantized weights to {}", dtype_name(first->dtype)));
  error.of_tensor(first->name);
  error.because(fmt::format("'{}' is {}, and its scales are missing", first->name,
                            dtype_name(source.tensors[first->source].dtype)));
  throw QuantizedCast(error.hint(kKeepHint), hinted(globs));
}

void check_castable(std::string_view name, DType from, DType to) {
  if (from == to || (is_castable(from) && is_castable(to))) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("tensor '{}': no cast from {} to {}", name, dtype_name(from), dtype_name(to)))
      .of_tensor(name);
}

/// Names by their source and target dtypes.
using Conversions = std::map<std::pair<DType, DType>, FirstNames>;

void describe(const Conversions& conversions, std::string_view one, std::string_view many, std::string_view effect,
              std::vector<std::string>& warnings) {
  for (const auto& [dtypes, names] : conversions) {
    const auto count = static_cast<std::int64_t>(names.count());
    warnings.push_back(fmt::format("{} converted from {} to {}, which {}: {}", plural(count, one, many),
                                   dtype_name(dtypes.first), dtype_name(dtypes.second), effect, names.text()));
  }
}

}  // namespace

void apply_casts(const std::vector<std::string>& texts, std::vector<SelectedTensor>& tensors) {
  std::vector<CastRule> rules = parse_casts(texts);
  if (rules.empty()) return;
  const GlobSet globs = globs_of(rules);
  for (SelectedTensor& tensor : tensors) {
    const CastRule* const rule = deciding_rule(rules, globs, tensor.name, tensor.dtype);
    if (rule == nullptr || !rule->dtype) continue;
    check_castable(tensor.name, tensor.dtype, *rule->dtype);
    tensor.dtype = *rule->dtype;
  }
  const auto unused = std::ranges::find(rules, false, &CastRule::used);
  if (unused == rules.end()) return;
  Error error(ErrorCode::kInvalidArgument, fmt::format("cast rule '{}' matches no tensor", unused->text));
  const std::string nearest = meant_glob(tensors, *unused);
  if (!nearest.empty()) error.hint(fmt::format("did you mean '{}={}'?", nearest, unused->wanted()));
  throw error.found(unused->glob);
}

std::vector<bool> decided_by_rules(const std::vector<std::string>& texts, const Catalog& source,
                                   std::span<const SelectedTensor> tensors) {
  std::vector<bool> decided(tensors.size());
  std::vector<CastRule> rules = parse_casts(texts);
  if (rules.empty()) return decided;
  const GlobSet globs = globs_of(rules);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    decided[i] = deciding_rule(rules, globs, tensors[i].name, source.tensors[tensors[i].source].dtype) != nullptr;
  }
  return decided;
}

std::vector<std::string> check_casts(const Catalog& source, std::span<const SelectedTensor> tensors,
                                     const QuantizationFacts& facts, LoneFloats lone) {
  if (std::ranges::none_of(tensors, [&](const SelectedTensor& tensor) { return changes(source, tensor); })) return {};
  const QuantizedPart quantized = find_quantized(source, facts);
  Refusal refusal(source, quantized);
  for (const SelectedTensor& tensor : tensors) {
    if (changes(source, tensor) && !quantized.is_plain(tensor.source)) refusal.add(tensor);
  }
  refusal.throw_if_any();
  if (lone == LoneFloats::kRefuse) refuse_lone(source, tensors, quantized.lone_floats);
  Conversions integers, truncated, halved, scales, floats;
  for (const SelectedTensor& tensor : tensors) {
    const DType from = source.tensors[tensor.source].dtype;
    if (tensor.dtype == from) continue;
    check_castable(tensor.name, from, tensor.dtype);
    const std::pair key{from, tensor.dtype};
    if (is_integer(from) && !holds_all(from, tensor.dtype)) integers[key].add(tensor.name);
    if (!is_integer(from) && from != DType::kBool && is_integer(tensor.dtype)) truncated[key].add(tensor.name);
    if (is_complex(from) && !is_complex(tensor.dtype)) halved[key].add(tensor.name);
    if (is_scale_name(source.tensors[tensor.source].name) && rounds(from, tensor.dtype)) scales[key].add(tensor.name);
    if (std::ranges::binary_search(quantized.lone_floats, tensor.source)) floats[key].add(tensor.name);
  }
  std::vector<std::string> warnings;
  describe(integers, "integer tensor is", "integer tensors are", "cannot represent all of them", warnings);
  describe(truncated, "tensor is", "tensors are", "drops fractions", warnings);
  describe(halved, "tensor is", "tensors are", "drops imaginary parts", warnings);
  describe(scales, "tensor of scales is", "tensors of scales are", "rounds them", warnings);
  describe(floats, "tensor is", "tensors are", "is right only if no scales belong to them", warnings);
  return warnings;
}

}  // namespace shard

#include "libshard/compute/merge_adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "libshard/compute/adapter_parts.h"
#include "libshard/compute/merged_weights.h"
#include "libshard/compute/unrounded_reader.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/short_text.h"

namespace shard {

namespace {

/// A change of names: from the start of the adapter's names to that of the base model's.
struct Prefix {
  std::string_view strip, add;

  /// Nothing if the name does not have the prefix to strip.
  std::optional<std::string> apply(std::string_view name) const {
    if (!name.starts_with(strip)) return std::nullopt;
    return std::string(add).append(name.substr(strip.size()));
  }
};
constexpr std::array kPrefixes{Prefix{"", ""},
                               Prefix{"", "model."},
                               Prefix{"", "language_model."},
                               Prefix{"", "module."},
                               Prefix{"model.", ""},
                               Prefix{"language_model.", ""},
                               Prefix{"module.", ""},
                               Prefix{"model.", "language_model.model."},
                               Prefix{"model.", "model.language_model."},
                               Prefix{"model.language_model.", "model."},
                               Prefix{"model.language_model.", "language_model.model."}};

/// The base model's name for one of an adapter: by the prefix of most names, or else by the only one that fits, because
/// the towers of a model of text and images may have different ones.
template <class Exists>
std::optional<std::string> name_in_base(std::string_view name, const Prefix& prefix, const Exists& exists) {
  if (std::optional<std::string> found = prefix.apply(name); found && exists(*found)) return found;
  std::optional<std::string> only;
  for (const Prefix& other : kPrefixes) {
    std::optional<std::string> found = other.apply(name);
    if (!found || !exists(*found) || found == only) continue;
    if (only) return std::nullopt;
    only = std::move(found);
  }
  return only;
}

/// The changes of one tensor of the base model.
struct Merge {
  std::vector<WeightedSum::Term> terms;
  std::optional<Leaf> magnitude, replaced;
  std::uint32_t last_adapter = 0;  ///< The reader of the adapter that changed it last.
};

/// A pair, and the tensor that it changes.
struct ModulePair {
  const AdapterPair* pair;
  std::uint32_t target;
};

/// One orientation of matrices.
enum class Stored : std::uint8_t { kAsProduct, kTransposed };

class Merging {
 public:
  /// Parameters as for merged_weights.
  Merging(const Catalog& base, const std::vector<Adapter>& adapters, const UnroundedReader* unrounded,
          bool only_unrounded)
      : base_(base),
        adapters_(adapters),
        unrounded_(unrounded),
        only_unrounded_(only_unrounded),
        has_several_names_(base.tensors.size()) {
    for (const Tensor& tensor : base.tensors) {
      if (tensor.alias_of != kNoIndex) has_several_names_[tensor.alias_of] = true;
    }
  }

  Computation make(std::vector<MergedAdapter>& counts) {
    for (std::uint32_t i = 0; i < adapters_.size(); ++i) counts.push_back(add_adapter(i));
    Computation made;
    made.warnings = std::move(warnings_);
    std::vector<std::uint32_t> formula_of(base_.tensors.size(), kNoIndex);
    for (const auto& [tensor, merge] : merges_.entries()) {
      formula_of[tensor] = static_cast<std::uint32_t>(made.formulas.size());
      made.formulas.push_back(make_formula(tensor, merge));
    }
    for (std::uint32_t i = 0; i < base_.tensors.size(); ++i) {
      const std::uint32_t formula = formula_of[base_.original_of(i)];
      if (formula == kNoIndex) continue;
      made.dropped.push_back(i);
      if (base_.original_of(i) != i) made.formulas[formula].aliases.emplace_back(base_.tensors[i].name);
    }
    return made;
  }

  enum class Fit : std::uint8_t { kNo, kYes, kWithExperts };
  /// Whether the base model has the modules of an adapter, and whether some are parameters of experts.
  Fit fit_of(std::uint32_t adapter) const {
    const AdapterParts parts = find_parts(adapters_[adapter]);
    const Prefix prefix = choose_prefix(parts);
    Fit fit = Fit::kYes;
    for (const AdapterPair& pair : parts.pairs) {
      const std::optional<std::string> module = module_of(pair, prefix);
      if (module && find(*module + ".weight") != kNoIndex) continue;
      if (!module || !fits_experts(adapter, pair, *module)) return Fit::kNo;
      fit = Fit::kWithExperts;
    }
    return fit;
  }

 private:
  std::uint32_t find(const std::string& name) const {
    const Tensor* const found = base_.find(name);
    return found == nullptr ? kNoIndex : base_.index_of(*found);
  }
  /// The parameters directly in a module, without `weight`.
  std::vector<std::uint32_t> parameters_of(const std::string& module) const {
    const std::string start = module + ".";
    auto at = std::ranges::lower_bound(base_.tensors, std::string_view(start), {}, &Tensor::name);
    std::vector<std::uint32_t> found;
    for (; at != base_.tensors.end() && at->name.starts_with(start); ++at) {
      if (at->name.find('.', start.size()) != std::string_view::npos) break;  // The experts are modules themselves.
      found.push_back(static_cast<std::uint32_t>(at - base_.tensors.begin()));
    }
    return found;
  }
  std::uint32_t reader_of(std::uint32_t adapter) const { return adapter + (unrounded_ == nullptr ? 1 : 2); }
  const Catalog& catalog(std::uint32_t adapter) const { return adapters_[adapter].reader->catalog(); }
  const Tensor& at(std::uint32_t adapter, std::uint32_t tensor) const { return catalog(adapter).tensors[tensor]; }
  std::string_view name_of(std::uint32_t adapter, const AdapterPair& pair) const { return at(adapter, pair.a).name; }

  bool fits_experts(std::uint32_t adapter, const AdapterPair& pair, const std::string& module) const;
  MergedAdapter add_adapter(std::uint32_t adapter);
  Prefix choose_prefix(const AdapterParts& parts) const;
  bool has(const std::string& module) const {
    const auto at = std::ranges::lower_bound(base_.tensors, std::string_view(module + "."), {}, &Tensor::name);
    return at != base_.tensors.end() && at->name.starts_with(module + ".");
  }
  /// The base model's module of a pair; nothing if there is none. \param prefix  that of most modules
  std::optional<std::string> module_of(const AdapterPair& pair, const Prefix& prefix) const {
    return name_in_base(pair.module, prefix, [this](const std::string& module) { return has(module); });
  }
  void add_pairs(std::uint32_t adapter, const std::vector<ModulePair>& pairs);
  void add_pair(std::uint32_t adapter, const AdapterPair& pair, std::uint32_t target, bool is_transposed);
  void add_experts(std::uint32_t adapter, const std::vector<AdapterPair>& pairs, const Prefix& prefix);
  void add_saved(std::uint32_t adapter, const SavedTensor& saved, const Prefix& prefix);
  void add_term(std::uint32_t adapter, const AdapterPair& pair, std::uint32_t target, const LowRankProduct& product);
  void check_dtype(std::uint32_t adapter, std::uint32_t target, std::string_view from) const;
  Merge& merge_of(std::uint32_t adapter, std::uint32_t target, std::string_view from);
  Formula make_formula(std::uint32_t tensor, const Merge& merge) const;
  Error missing(std::uint32_t adapter, std::string_view name) const;
  Error misfit(std::uint32_t adapter, const AdapterPair& pair, std::uint32_t target) const;
  Error unclear(std::uint32_t adapter, std::string_view factor, std::string_view weight) const;

  const Catalog& base_;
  const std::vector<Adapter>& adapters_;
  const UnroundedReader* unrounded_;
  bool only_unrounded_;
  std::vector<bool> has_several_names_;   ///< By tensor that is not an alias.
  HashMap<std::uint32_t, Merge> merges_;  ///< By tensor of the base model that is not an alias.
  std::vector<std::string> warnings_;
};

Error Merging::missing(std::uint32_t adapter, std::string_view name) const {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  // The base model may have them one by one.
  const bool is_fused = has(".experts.lora_") || has(".experts.base_layer.");
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("cannot merge {}: the base model has nothing for '{}'", adapters_[adapter].label, name))
      .of_tensor(name)
      .suggest(is_fused ? Remedy::kFuseExperts : Remedy::kMatchNames);
}

Error Merging::misfit(std::uint32_t adapter, const AdapterPair& pair, std::uint32_t target) const {
  return of_adapter(ErrorCode::kCorruption, adapters_[adapter], name_of(adapter, pair),
                    fmt::format("and its B do not fit '{}'", base_.tensors[target].name))
      .expected(to_string(base_.tensors[target].shape))
      .found(fmt::format("B {} and A {}", to_string(at(adapter, pair.b).shape), to_string(at(adapter, pair.a).shape)));
}

Error Merging::unclear(std::uint32_t adapter, std::string_view factor, std::string_view weight) const {
  return of_adapter(ErrorCode::kUnsupported, adapters_[adapter], factor,
                    fmt::format("does not show whether '{}' is transposed", weight))
      .because("its matrices are square, and the adapter's other pairs do not show it");
}

/// The result refers to names in `parts`.
Prefix Merging::choose_prefix(const AdapterParts& parts) const {
  std::vector<Prefix> prefixes(kPrefixes.begin(), kPrefixes.end());
  // Files of a base model may lack its own name, which classes with a head add: GPT-2's transformer.h.0.
  const auto is_inside = [](const AdapterPair& pair) { return pair.module.find('.') != std::string::npos; };
  if (const auto pair = std::ranges::find_if(parts.pairs, is_inside); pair != parts.pairs.end()) {
    prefixes.push_back({std::string_view(pair->module).substr(0, pair->module.find('.') + 1), ""});
  }
  Prefix best = prefixes.front();
  std::size_t most = 0;
  const std::size_t all = parts.pairs.size() + parts.saved.size();
  for (const Prefix& prefix : prefixes) {
    std::size_t count = 0;
    for (const AdapterPair& pair : parts.pairs) {
      const std::optional<std::string> module = prefix.apply(pair.module);
      count += module && has(*module) ? 1 : 0;
    }
    for (const SavedTensor& saved : parts.saved) {
      const std::optional<std::string> name = prefix.apply(saved.name);
      count += name && find(*name) != kNoIndex ? 1 : 0;
    }
    if (count > most) best = prefix, most = count;
    if (most == all) break;
  }
  return best;
}

MergedAdapter Merging::add_adapter(std::uint32_t adapter) {
  const AdapterParts parts = find_parts(adapters_[adapter]);
  const Prefix prefix = choose_prefix(parts);
  warnings_.insert(warnings_.end(), adapters_[adapter].warnings.begin(), adapters_[adapter].warnings.end());
  std::vector<AdapterPair> experts;
  std::vector<ModulePair> matrices;
  for (const AdapterPair& pair : parts.pairs) {
    const std::optional<std::string> module = module_of(pair, prefix);
    if (!module) throw missing(adapter, name_of(adapter, pair));
    if (find(*module + ".weight") != kNoIndex) {
      matrices.push_back({&pair, find(*module + ".weight")});
    } else if (find(*module + ".in_proj_weight") != kNoIndex) {
      throw of_adapter(ErrorCode::kUnsupported, adapters_[adapter], name_of(adapter, pair),
                       "is for nn.MultiheadAttention");
    } else {
      experts.push_back(pair);
    }
  }
  for (const SavedTensor& saved : parts.saved) {
    if (saved.is_base) add_saved(adapter, saved, prefix);
  }
  add_pairs(adapter, matrices);
  add_experts(adapter, experts, prefix);
  for (const SavedTensor& saved : parts.saved) {
    if (!saved.is_base) add_saved(adapter, saved, prefix);
  }
  // A name may be that of a head which this model lacks, so only the absence of all of them is unusual.
  const std::vector<std::string>& wanted = adapters_[adapter].config.modules_to_save;
  const auto may_be_wanted = [](const SavedTensor& saved) { return !saved.is_base && !saved.name.ends_with(".bias"); };
  if (!wanted.empty() && std::ranges::none_of(parts.saved, may_be_wanted)) {
    warnings_.push_back(fmt::format("{} has no tensors for its modules_to_save ({}); those of the base model are kept",
                                    adapters_[adapter].label, first_names(wanted)));
  }
  return {std::ssize(parts.pairs), std::ssize(parts.saved)};
}

/// The forms of matrices as the sizes of their pairs show them. Those of square matrices follow from other matrices of
/// the same name, or else of the adapter, because PEFT's flag `fan_in_fan_out` is that of the last module it changed.
class MatrixForms {
 public:
  /// Whether sizes cannot show the form, because the product is a square matrix.
  static bool is_square(const Tensor& a, const Tensor& b) { return a.shape.size() == 2 && a.shape[1] == b.shape[0]; }

  /// Nothing if the pair fits in no form. The weight of a convolution is the product with its other dimensions flat.
  static std::optional<Stored> fit(const Tensor& weight, const Tensor& a, const Tensor& b) {
    const std::int64_t out = b.shape[0], in = a.shape[1];
    if (a.shape.size() > 2) {
      const bool fits = weight.shape.size() == a.shape.size() && weight.shape[0] == out &&
                        std::ranges::equal(weight.shape.span().subspan(1), a.shape.span().subspan(1));
      return fits ? std::optional(Stored::kAsProduct) : std::nullopt;
    }
    if (weight.shape.size() != 2) return std::nullopt;
    if (weight.shape[0] == out && weight.shape[1] == in) return Stored::kAsProduct;
    if (weight.shape[0] == in && weight.shape[1] == out) return Stored::kTransposed;
    return std::nullopt;
  }

  void note(std::string_view module, Stored stored) {
    (stored == Stored::kTransposed ? has_transposed_ : has_products_) = true;
    const auto [known, is_new] = by_name_.try_emplace(last_part(module), stored);
    if (!is_new && known != stored) known = std::nullopt;
  }

  /// The form of a square matrix; nothing if it is unknown.
  std::optional<Stored> of_square(std::string_view module, Stored stated) const {
    const std::optional<Stored>* const known = by_name_.find(last_part(module));
    if (known != nullptr) return *known;
    if (has_transposed_ && has_products_) return std::nullopt;
    if (has_transposed_) return Stored::kTransposed;
    return has_products_ ? Stored::kAsProduct : stated;
  }

 private:
  HashMap<std::string_view, std::optional<Stored>> by_name_;
  bool has_transposed_ = false, has_products_ = false;
};

void Merging::add_pairs(std::uint32_t adapter, const std::vector<ModulePair>& pairs) {
  MatrixForms forms;
  for (const auto& [pair, target] : pairs) {
    const Tensor &weight = base_.tensors[target], &a = at(adapter, pair->a), &b = at(adapter, pair->b);
    const std::optional<Stored> stored = MatrixForms::fit(weight, a, b);
    if (b.shape[1] != a.shape[0] || !stored) throw misfit(adapter, *pair, target);
    if (!pair->is_embedding && !MatrixForms::is_square(a, b)) forms.note(pair->module, *stored);
  }
  const Stored stated = adapters_[adapter].config.is_fan_in_fan_out ? Stored::kTransposed : Stored::kAsProduct;
  for (const auto& [pair, target] : pairs) {
    const Tensor &weight = base_.tensors[target], &a = at(adapter, pair->a), &b = at(adapter, pair->b);
    std::optional<Stored> stored = MatrixForms::fit(weight, a, b);
    if (pair->is_embedding) {
      if (weight.shape[0] != a.shape[1]) throw misfit(adapter, *pair, target);
      stored = Stored::kTransposed;
    } else if (MatrixForms::is_square(a, b)) {
      stored = forms.of_square(pair->module, stated);
    }
    if (!stored) throw unclear(adapter, a.name, weight.name);
    add_pair(adapter, *pair, target, *stored == Stored::kTransposed);
  }
}

/// A pair for a matrix: the product B A, or its transpose.
void Merging::add_pair(std::uint32_t adapter, const AdapterPair& pair, std::uint32_t target, bool is_transposed) {
  const Tensor &a = at(adapter, pair.a), &b = at(adapter, pair.b);
  const std::int64_t rank = a.shape[0], in = checked_numel(a.shape) / rank, out = b.shape[0];
  const std::int64_t rows = is_transposed ? in : out, columns = is_transposed ? out : in;
  if (is_transposed && pair.magnitude != kNoIndex) {
    throw of_adapter(ErrorCode::kUnsupported, adapters_[adapter], name_of(adapter, pair),
                     "has magnitudes (DoRA) for a transposed weight");
  }
  const Factor of_a{{pair.a, reader_of(adapter)},
                    is_transposed ? std::array<std::int64_t, 3>{0, 1, in} : std::array<std::int64_t, 3>{0, in, 1}};
  const Factor of_b{{pair.b, reader_of(adapter)},
                    is_transposed ? std::array<std::int64_t, 3>{0, 1, rank} : std::array<std::int64_t, 3>{0, rank, 1}};
  add_term(adapter, pair, target, {1, rows, columns, rank, is_transposed ? of_a : of_b, is_transposed ? of_b : of_a});
}

/// Pairs for parameters of experts. A is [experts * rank, in] and B is [out, rank * experts], experts last.
class ExpertPairs {
 public:
  static std::optional<Stored> fit(const Tensor& weight, const Tensor& a, const Tensor& b) {
    if (weight.shape.size() != 3) return std::nullopt;
    const std::int64_t experts = weight.shape[0];
    if (experts == 0 || a.shape[0] % experts != 0 || b.shape[1] != a.shape[0]) return std::nullopt;
    if (weight.shape[1] == b.shape[0] && weight.shape[2] == a.shape[1]) return Stored::kAsProduct;
    if (weight.shape[1] == a.shape[1] && weight.shape[2] == b.shape[0]) return Stored::kTransposed;
    return std::nullopt;
  }

  static LowRankProduct product(const Tensor& weight, const AdapterPair& pair, std::uint32_t reader, std::int64_t rank,
                                Stored stored) {
    const bool is_transposed = stored == Stored::kTransposed;
    const std::int64_t experts = weight.shape[0], rows = weight.shape[1], columns = weight.shape[2];
    const std::int64_t in = is_transposed ? rows : columns;
    Factor of_a{{pair.a, reader}, {rank * in, in, 1}};
    Factor of_b{{pair.b, reader}, {1, rank * experts, experts}};
    if (!is_transposed) return {experts, rows, columns, rank, of_b, of_a};
    std::swap(of_a.strides[1], of_a.strides[2]);
    std::swap(of_b.strides[1], of_b.strides[2]);
    return {experts, rows, columns, rank, of_a, of_b};
  }
};

bool Merging::fits_experts(std::uint32_t adapter, const AdapterPair& pair, const std::string& module) const {
  return std::ranges::any_of(parameters_of(module), [&](std::uint32_t target) {
    return ExpertPairs::fit(base_.tensors[target], at(adapter, pair.a), at(adapter, pair.b)).has_value();
  });
}

void Merging::add_experts(std::uint32_t adapter, const std::vector<AdapterPair>& pairs, const Prefix& prefix) {
  struct Found {
    const AdapterPair* pair;
    std::uint32_t target;
    Stored stored;
  };
  std::vector<Found> all;
  std::optional<Stored> known;  // The form of weights that are not square, if they have one form.
  bool is_mixed = false;
  for (const AdapterPair& pair : pairs) {
    const Tensor &a = at(adapter, pair.a), &b = at(adapter, pair.b);
    const std::vector<std::uint32_t> parameters = parameters_of(*module_of(pair, prefix));
    std::vector<Found> fitting;
    for (const std::uint32_t target : parameters) {
      const std::optional<Stored> stored = ExpertPairs::fit(base_.tensors[target], a, b);
      if (stored) fitting.push_back({&pair, target, *stored});
    }
    if (parameters.empty()) throw missing(adapter, a.name);
    if (fitting.empty()) {
      for (const std::uint32_t target : parameters) check_dtype(adapter, target, a.name);  // Packed codes fit nothing.
      throw misfit(adapter, pair, parameters.front());
    }
    if (fitting.size() > 1) {
      throw of_adapter(ErrorCode::kUnsupported, adapters_[adapter], a.name, "fits several parameters of its module")
          .found(
              fmt::format("{} and {}", base_.tensors[fitting[0].target].name, base_.tensors[fitting[1].target].name));
    }
    if (a.shape[1] != b.shape[0]) {
      is_mixed = is_mixed || (known && *known != fitting.front().stored);
      known = fitting.front().stored;
    }
    all.push_back(fitting.front());
  }
  for (const Found& found : all) {
    const Tensor &weight = base_.tensors[found.target], &a = at(adapter, found.pair->a);
    const bool is_square = weight.shape[1] == weight.shape[2];
    if (is_square && (!known || is_mixed)) throw unclear(adapter, a.name, weight.name);
    const std::int64_t rank = a.shape[0] / weight.shape[0];
    add_term(adapter, *found.pair, found.target,
             ExpertPairs::product(weight, *found.pair, reader_of(adapter), rank, is_square ? *known : found.stored));
  }
}

void Merging::check_dtype(std::uint32_t adapter, std::uint32_t target, std::string_view from) const {
  const DType dtype = base_.tensors[target].dtype;
  if (dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16) return;
  throw of_adapter(ErrorCode::kUnsupported, adapters_[adapter], from,
                   fmt::format("is for '{}', which is {}", base_.tensors[target].name, dtype_name(dtype)))
      .because("weights of float32, float16 and bfloat16 are merged")
      .suggest(Remedy::kDequantize);
}

Merge& Merging::merge_of(std::uint32_t adapter, std::uint32_t target, std::string_view from) {
  check_dtype(adapter, target, from);
  Merge& merge = merges_[base_.original_of(target)];
  if (merge.last_adapter == adapter + 1) {
    throw of_adapter(
        ErrorCode::kUnsupported, adapters_[adapter], from,
        fmt::format("changes '{}', which another of its tensors also changes", base_.tensors[target].name));
  }
  merge.last_adapter = adapter + 1;
  return merge;
}

void Merging::add_term(std::uint32_t adapter, const AdapterPair& pair, std::uint32_t target,
                       const LowRankProduct& product) {
  const std::string_view from = name_of(adapter, pair);
  const AdapterConfig& config = adapters_[adapter].config;
  const Tensor& weight = base_.tensors[target];
  const std::string parameter = fmt::format("{}{}", pair.module, weight.name.substr(weight.name.rfind('.')));
  const bool is_of_experts = weight.shape.size() == 3 && at(adapter, pair.a).shape.size() == 2;
  const bool is_of_parameter = is_of_experts || config.targets(parameter);  // Or else of the module.
  const double scale =
      config.scale_of(is_of_parameter ? parameter : pair.module, product.rank) * adapters_[adapter].weight;
  if (!std::isfinite(static_cast<float>(scale))) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("cannot merge {}: the scale of '{}' is too large", adapters_[adapter].label, from))
        .of_tensor(from);
  }
  Merge& merge = merge_of(adapter, target, from);
  const bool is_own = !merge.replaced || merge.replaced->reader == reader_of(adapter);  // See SavedTensor::is_base.
  const bool is_first = merge.terms.empty() && is_own;
  if (merge.magnitude || (pair.magnitude != kNoIndex && (!is_first || adapters_[adapter].weight != 1))) {
    throw of_adapter(ErrorCode::kUnsupported, adapters_[adapter], from,
                     "has magnitudes (DoRA), which exclude weights and other adapters");
  }
  if (pair.magnitude != kNoIndex) {
    const Tensor& magnitude = at(adapter, pair.magnitude);
    if (checked_numel(magnitude.shape) != product.rows) throw misfit(adapter, pair, target);
    merge.magnitude = Leaf{pair.magnitude, reader_of(adapter)};
  }
  merge.terms.push_back({static_cast<float>(scale), std::make_shared<TensorExpression>(TensorExpression{product})});
}

void Merging::add_saved(std::uint32_t adapter, const SavedTensor& saved, const Prefix& prefix) {
  const Tensor& from = at(adapter, saved.tensor);
  const std::optional<std::string> name =
      name_in_base(saved.name, prefix, [this](const std::string& each) { return find(each) != kNoIndex; });
  const std::uint32_t target = name ? find(*name) : kNoIndex;
  if (target == kNoIndex) throw missing(adapter, from.name);
  if (from.shape != base_.tensors[target].shape) {
    throw of_adapter(ErrorCode::kCorruption, adapters_[adapter], from.name,
                     fmt::format("does not fit '{}'", base_.tensors[target].name))
        .expected(to_string(base_.tensors[target].shape))
        .found(to_string(from.shape));
  }
  if (!saved.is_base && has_several_names_[base_.original_of(target)]) {
    throw of_adapter(
        ErrorCode::kUnsupported, adapters_[adapter], from.name,
        fmt::format("replaces '{}' only, which shares its storage with another tensor", base_.tensors[target].name))
        .hint("merge it with the library that trained it");
  }
  check_dtype(adapter, target, from.name);
  Merge& merge = saved.is_base ? merges_[base_.original_of(target)] : merge_of(adapter, target, from.name);
  if ((adapters_[adapter].weight != 1 && !saved.is_base) || !merge.terms.empty() || merge.replaced) {
    throw of_adapter(ErrorCode::kUnsupported, adapters_[adapter], from.name,
                     "replaces a tensor, which excludes weights and other adapters before it");
  }
  merge.replaced = Leaf{saved.tensor, reader_of(adapter)};
}

Formula Merging::make_formula(std::uint32_t tensor, const Merge& merge) const {
  const Tensor& base = base_.tensors[tensor];
  WeightedSum sum;
  const bool is_computed = only_unrounded_ || (unrounded_ != nullptr && unrounded_->has(tensor));
  const Leaf weight = merge.replaced.value_or(Leaf{tensor, is_computed ? 1U : 0U});
  sum.terms.push_back({1, std::make_shared<TensorExpression>(TensorExpression{weight})});
  sum.terms.insert(sum.terms.end(), merge.terms.begin(), merge.terms.end());
  Formula formula = formula_like(base);
  formula.value = {std::move(sum)};
  if (merge.magnitude) {
    const auto value = std::make_shared<TensorExpression>(std::move(formula.value));
    formula.value = {NormalizedRows{value, checked_numel(base.shape) / base.shape[0], *merge.magnitude}};
  }
  return formula;
}

}  // namespace

Computation merged_weights(const Catalog& base, const std::vector<Adapter>& adapters, const UnroundedReader* unrounded,
                           bool only_unrounded, std::vector<MergedAdapter>& counts) {
  return Merging(base, adapters, unrounded, only_unrounded).make(counts);
}

bool change_experts(const Catalog& base, const std::vector<Adapter>& adapters) {
  const Merging merging(base, adapters, nullptr, false);
  bool has_experts = false;
  for (std::uint32_t i = 0; i < adapters.size(); ++i) {
    const Merging::Fit fit = merging.fit_of(i);
    if (fit == Merging::Fit::kNo) return false;
    has_experts = has_experts || fit == Merging::Fit::kWithExperts;
  }
  return has_experts;
}

std::unique_ptr<Reader> merge_adapters(std::unique_ptr<Reader> base, std::vector<Adapter> adapters,
                                       std::vector<MergedAdapter>& counts, ComputedReaders computed) {
  std::unique_ptr<UnroundedReader> unrounded;
  if (!computed.empty()) unrounded = std::make_unique<UnroundedReader>(*base, std::move(computed));
  Computation merged = merged_weights(base->catalog(), adapters, unrounded.get(), false, counts);
  std::vector<std::unique_ptr<Reader>> readers;
  readers.push_back(std::move(base));
  if (unrounded != nullptr) readers.push_back(std::move(unrounded));
  for (Adapter& adapter : adapters) readers.push_back(std::move(adapter.reader));
  return std::make_unique<ComputedReader>(std::move(readers), std::move(merged));
}

}  // namespace shard

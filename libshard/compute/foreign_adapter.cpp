#include "libshard/compute/foreign_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "libshard/compute/operand.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/json_builder.h"
#include "libshard/core/short_text.h"
#include "libshard/core/split.h"

namespace shard {

namespace {

enum class ForeignRole : std::uint8_t { kDown, kUp, kMagnitude, kAlpha };
constexpr std::size_t kForeignRoles = 4;

struct ForeignEnd {
  std::string_view text;
  ForeignRole role;
};
constexpr std::array kForeignEnds{ForeignEnd{".lora_down.weight", ForeignRole::kDown},
                                  ForeignEnd{".lora_up.weight", ForeignRole::kUp},
                                  ForeignEnd{".lora_A.weight", ForeignRole::kDown},
                                  ForeignEnd{".lora_B.weight", ForeignRole::kUp},
                                  ForeignEnd{".lora_linear_layer.down.weight", ForeignRole::kDown},
                                  ForeignEnd{".lora_linear_layer.up.weight", ForeignRole::kUp},
                                  ForeignEnd{".lora.down.weight", ForeignRole::kDown},
                                  ForeignEnd{".lora.up.weight", ForeignRole::kUp},
                                  ForeignEnd{".lora_magnitude_vector", ForeignRole::kMagnitude},
                                  ForeignEnd{".alpha", ForeignRole::kAlpha}};
/// PEFT's ends of names, by role.
constexpr std::array<std::string_view, 3> kPeftEnds{".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"};

/// First parts of names: the models of a pipeline. `transformer` is also the base model in GPT-2 and others.
constexpr std::string_view kTransformer = "transformer";
constexpr std::array<std::string_view, 9> kPipelineParts{"unet",           "text_encoder",    "text_encoder_2",
                                                         "text_encoder_3", "diffusion_model", "prior",
                                                         kTransformer,     "transformer_2",   "controlnet"};
constexpr std::string_view kFlatStart = "lora_", kPeftWrapper = "base_model.model.";
/// Modules of text encoders lost this first part in transformers 5.
constexpr std::string_view kTextModel = "text_model.";
constexpr std::string_view kDiffusersMetadata = "lora_adapter_metadata";

/// A name of a tensor in such an adapter.
struct ForeignName {
  std::string_view part{};    ///< "unet", "te1"; empty: none.
  std::string_view module{};  ///< Inside of it.
  ForeignRole role{};
  bool is_flat = false;  ///< Dots of the module are underscores.
  bool is_peft = false;  ///< The end is PEFT's.
};

std::optional<ForeignName> parse_foreign(std::string_view name) {
  const auto end =
      std::ranges::find_if(kForeignEnds, [&](const ForeignEnd& each) { return name.ends_with(each.text); });
  if (end == kForeignEnds.end() || end->text.size() == name.size()) return std::nullopt;
  ForeignName found{.module = name.substr(0, name.size() - end->text.size()), .role = end->role};
  found.is_peft = contains(kPeftEnds, end->text);
  take_prefix(found.module, kPeftWrapper);
  found.is_flat = found.module.starts_with(kFlatStart) && found.module.find('.') == std::string_view::npos;
  if (found.is_flat) found.module.remove_prefix(kFlatStart.size());
  const std::size_t separator = found.module.find(found.is_flat ? '_' : '.');
  const std::string_view first = found.module.substr(0, separator);
  if (separator == std::string_view::npos || (!found.is_flat && !contains(kPipelineParts, first))) return found;
  found.part = first;
  found.module.remove_prefix(separator + 1);
  take_prefix(found.module, kPeftWrapper);
  return found;
}

/// The tensors of one module, by role; kNoIndex: it has none.
struct ForeignModule {
  std::string name;
  std::array<std::uint32_t, kForeignRoles> tensors{kNoIndex, kNoIndex, kNoIndex, kNoIndex};
  std::uint32_t tensor(ForeignRole role) const { return tensors[static_cast<std::size_t>(role)]; }
};

/// The modules of one model of a pipeline.
struct ForeignPart {
  std::string name;
  bool is_flat = false;
  std::vector<ForeignModule> modules{};
};

/// The modules of a base model, under names that begin with `prefix`.
struct FoundPart {
  std::string prefix;
  std::vector<std::string_view> modules;  ///< By module of the adapter's part.
};

/// Matches the names in an adapter with those in a base model.
class ForeignNames {
 public:
  ForeignNames(const Catalog& adapter, const Catalog& base, const std::string& label)
      : adapter_(adapter), label_(label) {
    constexpr std::string_view kWeight = ".weight";
    for (const Tensor& tensor : base.tensors) {
      if (!tensor.name.ends_with(kWeight) || tensor.shape.size() < 2) continue;
      modules_.push_back({tensor.name.substr(0, tensor.name.size() - kWeight.size()), &tensor});
    }
  }

  /// Nothing if the base model has none of a part's modules. \throws Error  it has some; or it has all of them twice
  std::optional<FoundPart> find(const ForeignPart& part) const {
    std::optional<FoundPart> found = find_named(part);
    if (found) return found;
    const std::string_view lost = part.is_flat ? kFlatTextModel : kTextModel;
    ForeignPart shorter = part;
    for (ForeignModule& module : shorter.modules) {
      if (!module.name.starts_with(lost)) return std::nullopt;
      module.name.erase(0, lost.size());
    }
    return find_named(shorter);
  }

  Error missing(const ForeignModule& module) const {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("cannot merge {}: the base model has nothing for '{}'", label_, name_of(module)))
        .of_tensor(name_of(module))
        .because("adapters of diffusers and Kohya's scripts have the names of the model with which they were trained")
        .suggest(Remedy::kMatchNames);
  }
  Error refused(const ForeignModule& module, const std::string& what) const {
    return Error(ErrorCode::kUnsupported, fmt::format("cannot merge {}: '{}' {}", label_, name_of(module), what))
        .of_tensor(name_of(module));
  }

 private:
  static constexpr std::string_view kFlatTextModel = "text_model_";
  /// Adapters change the text encoders of a pipeline. CLIP's encoder of images has modules of the same names.
  static constexpr std::string_view kVision = "vision";
  static constexpr std::size_t kMostPrefixes = 16, kMostCompared = 1 << 24;

  struct BaseModule {
    std::string_view name;
    const Tensor* weight;
  };

  std::string_view name_of(const ForeignModule& module) const {
    return adapter_.tensors[module.tensor(ForeignRole::kDown)].name;
  }

  static bool is_called(std::string_view name, std::string_view wanted, bool is_flat) {
    const auto is_same = [&](char a, char b) { return a == b || (is_flat && a == '.' && b == '_'); };
    return std::ranges::equal(name, wanted, is_same);
  }

  /// Whether the product of a pair has the sizes of a weight. Parts of a pipeline may have the same names.
  bool fits(const ForeignModule& module, const Tensor& weight) const {
    const Dims down = adapter_.tensors[module.tensor(ForeignRole::kDown)].shape,
               up = adapter_.tensors[module.tensor(ForeignRole::kUp)].shape;
    const auto columns = [](Dims shape) { return shape[0] == 0 ? 0 : checked_numel(shape) / shape[0]; };
    return down.size() >= 2 && up.size() >= 2 && up[0] == weight.shape[0] && columns(down) == columns(weight.shape);
  }

  /// The beginnings of names in the base model after which the name of a module follows.
  std::set<std::string_view> prefixes_of(const ForeignModule& module, bool is_flat) const {
    std::set<std::string_view> prefixes;
    for (const BaseModule& each : modules_) {
      if (each.name.size() < module.name.size()) continue;
      const std::size_t at = each.name.size() - module.name.size();
      if (at > 0 && each.name[at - 1] != '.') continue;
      if (each.name.substr(0, at).find(kVision) != std::string_view::npos) continue;
      if (!is_called(each.name.substr(at), module.name, is_flat) || !fits(module, *each.weight)) continue;
      prefixes.insert(each.name.substr(0, at));
      if (prefixes.size() > kMostPrefixes) throw refused(module, "fits many modules of the base model");
    }
    return prefixes;
  }

  /// The beginnings before the longest name, or else before the first name that exists.
  std::set<std::string_view> prefixes_of(const ForeignPart& part) const {
    const auto longest = std::ranges::max_element(part.modules, {}, [](const auto& each) { return each.name.size(); });
    std::set<std::string_view> prefixes = prefixes_of(*longest, part.is_flat);
    const std::size_t most = kMostCompared / std::max<std::size_t>(modules_.size(), 1);
    for (std::size_t i = 0; prefixes.empty() && i < std::min(part.modules.size(), most); ++i) {
      prefixes = prefixes_of(part.modules[i], part.is_flat);
    }
    return prefixes;
  }

  /// The modules of a part below a prefix. Sets `first` to the first one that is missing, if any.
  FoundPart below(std::string_view prefix, const ForeignPart& part, const ForeignModule*& first) const {
    struct Named {
      const BaseModule* module;
      bool is_ambiguous = false;
    };
    HashMap<std::string, Named> named;
    for (const BaseModule& each : modules_) {
      if (!each.name.starts_with(prefix)) continue;
      std::string key(each.name.substr(prefix.size()));
      if (part.is_flat) std::ranges::replace(key, '.', '_');
      const auto [known, is_new] = named.try_emplace(std::move(key), Named{&each});
      known.is_ambiguous = known.is_ambiguous || !is_new;
    }
    FoundPart found{std::string(prefix), {}};
    for (const ForeignModule& each : part.modules) {
      const Named* const known = named.find(each.name);
      if (known == nullptr || !fits(each, *known->module->weight)) {
        if (first == nullptr) first = &each;
        continue;
      }
      if (known->is_ambiguous) {
        throw refused(each, fmt::format("fits several modules of the base model, such as '{}'", known->module->name));
      }
      found.modules.push_back(known->module->name);
    }
    return found;
  }

  std::optional<FoundPart> find_named(const ForeignPart& part) const {
    std::optional<FoundPart> whole;
    const ForeignModule* missed = nullptr;  // A module of a part that has others.
    for (const std::string_view prefix : prefixes_of(part)) {
      const ForeignModule* first = nullptr;
      FoundPart found = below(prefix, part, first);
      if (first != nullptr) {
        missed = first;
      } else if (whole) {
        throw refused(part.modules.front(), fmt::format("fits several modules of the base model: '{}' and '{}'",
                                                        whole->modules.front(), found.modules.front()));
      } else {
        whole = std::move(found);
      }
    }
    if (!whole && missed != nullptr) throw missing(*missed);
    return whole;
  }

  const Catalog& adapter_;
  const std::string& label_;
  std::vector<BaseModule> modules_;
};

/// Sorts the tensors of an adapter, finds their modules, and computes the scales.
class ForeignReading {
 public:
  ForeignReading(const std::unique_ptr<Reader>& adapter, const Catalog& base, const std::string& label)
      : reader_(adapter), catalog_(adapter->catalog()), names_(catalog_, base, label), label_(label) {}

  ForeignAdapter run() {
    sort();
    std::vector<std::uint32_t> alphas;
    for (const ForeignPart& part : parts_) {
      for (const ForeignModule& each : part.modules) {
        if (each.tensor(ForeignRole::kAlpha) != kNoIndex) alphas.push_back(each.tensor(ForeignRole::kAlpha));
      }
    }
    reader_->locate(alphas);
    for (const ForeignPart& part : parts_) {
      const std::optional<FoundPart> found = names_.find(part);
      found ? add(part, *found) : absent_.push_back(&part);
    }
    if (absent_.size() == parts_.size()) throw names_.missing(parts_.front().modules.front());
    for (const ForeignPart* const part : absent_) {
      made_.warnings.push_back(fmt::format("{}: skipped {} for '{}', because the base model has no such modules",
                                           label_, plural(std::ssize(part->modules), "pair"), part->name));
    }
    return std::move(made_);
  }

 private:
  Error error_of(ErrorCode code, std::uint32_t tensor, std::string_view what) const {
    const std::string_view name = catalog_.tensors[tensor].name;
    return Error(code, fmt::format("cannot merge {}: '{}' {}", label_, name, what)).of_tensor(name);
  }

  void sort() {
    HashMap<std::string, std::pair<std::size_t, std::size_t>> places;  // The numbers of a part and of its module.
    HashMap<std::string, std::size_t> part_of;
    for (std::uint32_t i = 0; i < catalog_.tensors.size(); ++i) {
      const std::optional<ForeignName> name = parse_foreign(catalog_.tensors[i].name);
      if (!name) throw error_of(ErrorCode::kUnsupported, i, "has an unknown form").hint(kHint);
      const std::string part_key = fmt::format("{}{}", name->is_flat ? kFlatStart : "", name->part);
      const auto [part, is_new_part] = part_of.try_emplace(part_key, parts_.size());
      if (is_new_part) parts_.push_back({std::string(name->part), name->is_flat});
      if (parts_.size() > kMostParts) throw error_of(ErrorCode::kUnsupported, i, "is for one of too many models");
      const auto [place, is_new] = places.try_emplace(fmt::format("{}/{}", part_key, name->module),
                                                      std::pair(part, parts_[part].modules.size()));
      if (is_new) parts_[part].modules.push_back({std::string(name->module)});
      std::uint32_t& tensor = parts_[place.first].modules[place.second].tensors[static_cast<std::size_t>(name->role)];
      if (tensor != kNoIndex) throw error_of(ErrorCode::kCorruption, i, "repeats a tensor under a second name");
      tensor = i;
    }
    for (const ForeignPart& part : parts_) std::ranges::for_each(part.modules, [&](const auto& each) { check(each); });
  }

  void check(const ForeignModule& module) const {
    const std::uint32_t down = module.tensor(ForeignRole::kDown), up = module.tensor(ForeignRole::kUp);
    if (down != kNoIndex && up != kNoIndex) return;
    const std::uint32_t other = *std::ranges::min_element(module.tensors);
    throw error_of(ErrorCode::kCorruption, other, "is half a pair: the other tensor is missing");
  }

  void add(const ForeignPart& part, const FoundPart& found) {
    const std::optional<AdapterConfig> stated = stated_config(part.name);
    for (std::size_t i = 0; i < part.modules.size(); ++i) {
      const ForeignModule& module = part.modules[i];
      const std::string name(found.modules[i]);
      if (!targets_.insert(name)) throw names_.refused(module, "and another tensor fit one module of the base model");
      for (std::size_t role = 0; role < kPeftEnds.size(); ++role) {
        if (module.tensors[role] == kNoIndex) continue;
        made_.factors.push_back({module.tensors[role], std::string(name).append(kPeftEnds[role])});
      }
      made_.config.is_dora =
          made_.config.is_dora || (stated && stated->is_dora) || module.tensor(ForeignRole::kMagnitude) != kNoIndex;
      const std::int64_t rank = catalog_.tensors[module.tensor(ForeignRole::kDown)].shape[0];
      const std::uint32_t alpha = module.tensor(ForeignRole::kAlpha);
      const double scale = alpha != kNoIndex ? alpha_of(alpha) / static_cast<double>(std::max<std::int64_t>(rank, 1))
                           : stated          ? stated->scale_of(module.name, rank)
                                             : 1;
      made_.config.scales.try_emplace(name, scale);
    }
  }

  double alpha_of(std::uint32_t index) const {
    const Tensor& tensor = catalog_.tensors[index];
    if (checked_numel(tensor.shape) != 1 || !is_castable(tensor.dtype)) {
      throw error_of(ErrorCode::kCorruption, index, "is not a number").found(to_string(tensor.shape));
    }
    float alpha = 0;
    Operand(Readers(&reader_, 1), Leaf{index, 0}).read_floats(0, std::span(&alpha, 1));
    if (std::isfinite(alpha)) return alpha;
    throw error_of(ErrorCode::kCorruption, index, "is not a finite number").found(fmt::format("{}", alpha));
  }

  /// PEFT's configuration of a part, from the metadata that diffusers writes. Nothing without it.
  std::optional<AdapterConfig> stated_config(const std::string& part) const {
    using Ordered = nlohmann::ordered_json;  // The first key of alpha_pattern that matches counts.
    const auto found = catalog_.metadata.find(std::string(kDiffusersMetadata));
    if (found == catalog_.metadata.end()) return std::nullopt;
    const std::string place = fmt::format("{} of {}", kDiffusersMetadata, label_);
    const Ordered all = parse_json<Ordered>(found->second, {}, [&](const std::string& why) {
      return Error(ErrorCode::kCorruption, fmt::format("cannot read {}: {}", place, why))
          .of_kind(FindingKind::kBadHeader);
    });
    Ordered config = Ordered::object();
    const std::string start = part.empty() ? part : part + ".";
    for (const auto& [key, value] : all.items()) {
      if (key.starts_with(start)) config[key.substr(start.size())] = value;
    }
    if (config.empty()) return std::nullopt;
    if (!config.contains("peft_type")) config["peft_type"] = "LORA";
    return parse_adapter_config(config.dump(-1, ' ', false, Ordered::error_handler_t::replace), place);
  }

  static constexpr std::size_t kMostParts = 16;  ///< A part costs a pass over the names in the base model.
  static constexpr const char* kHint = "convert or merge it with the library that trained it";

  const std::unique_ptr<Reader>& reader_;
  const Catalog& catalog_;
  ForeignNames names_;
  const std::string& label_;
  std::vector<ForeignPart> parts_;
  std::vector<const ForeignPart*> absent_;
  HashSet<std::string> targets_;
  ForeignAdapter made_;
};

}  // namespace

bool is_foreign_adapter(const Catalog& adapter) {
  const bool is_of_diffusers = adapter.metadata.contains(std::string(kDiffusersMetadata));
  return std::ranges::any_of(adapter.tensors, [&](const Tensor& tensor) {
    const std::optional<ForeignName> name = parse_foreign(tensor.name);
    if (!name || name->role == ForeignRole::kAlpha) return false;
    if (!name->is_peft || is_of_diffusers) return true;
    // The attention of diffusers has these modules, unlike GPT-2's.
    const bool is_of_pipeline = !name->part.empty() && name->part != kTransformer;
    return is_of_pipeline || (name->part == kTransformer && name->module.find(".to_") != std::string_view::npos);
  });
}

ForeignAdapter read_foreign_adapter(const std::unique_ptr<Reader>& adapter, const Catalog& base,
                                    const std::string& label) {
  return ForeignReading(adapter, base, label).run();
}

}  // namespace shard

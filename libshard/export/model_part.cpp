#include "libshard/export/model_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "libshard/core/error.h"
#include "libshard/export/adapter.h"
#include "libshard/export/containers.h"

namespace shard {

namespace {

constexpr std::array<std::string_view, 4> kWrappers{"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
                                                    "_forward_module"};
constexpr std::string_view kDataParallel = "module", kFlatParameter = "_flat_param";
constexpr std::string_view kModelPrefix = "model.", kAverages = "n_averaged";
/// Modules of transformers' models outside of the base model.
constexpr std::array<std::string_view, 12> kHeads{"lm_head",
                                                  "embed_out",
                                                  "cls",
                                                  "classifier",
                                                  "score",
                                                  "qa_outputs",
                                                  "logit_scale",
                                                  "vocab_projector",
                                                  "generator_predictions",
                                                  "text_projection",
                                                  "visual_projection",
                                                  "pre_classifier"};
/// The names of the base model in the classes of several families. Other families use the model's type.
constexpr std::array<std::string_view, 2> kModelNames{"transformer", "backbone"};

template <class List>
bool contains(const List& list, std::string_view word) {
  return std::ranges::find(list, word) != list.end();
}

std::string_view first_part(std::string_view name) { return name.substr(0, name.find('.')); }

/// A name without its container and without the parts that wrappers add.
std::string clean(std::string_view name, std::string_view container) {
  if (!container.empty()) name.remove_prefix(std::min(name.size(), container.size() + 1));
  return without_wrappers(name);
}

/// Whether some name begins with `model.` twice, or the name of a head, which is in no other module, begins with it
/// once.
bool has_outer_model(const std::vector<ModelTensor>& tensors) {
  return std::ranges::any_of(tensors, [](const ModelTensor& each) {
    if (!each.name.starts_with(kModelPrefix)) return false;
    const std::string_view inner = std::string_view(each.name).substr(kModelPrefix.size());
    return inner.starts_with(kModelPrefix) || contains(kHeads, first_part(inner));
  });
}

/// Whether all names begin with `model.`, and the hints show that a module outside of the model causes it.
bool is_in_module(const std::vector<ModelTensor>& tensors, const ModelHints& hints) {
  std::size_t with = 0, without = 0;
  bool is_named = false;
  std::string type = hints.type;
  std::ranges::replace(type, '-', '_');
  for (const ModelTensor& each : tensors) {
    if (!each.name.starts_with(kModelPrefix)) return false;
    const std::string_view inner = std::string_view(each.name).substr(kModelPrefix.size()), part = first_part(inner);
    if (hints.has && hints.has(each.name)) ++with;
    if (hints.has && hints.has(inner)) ++without;
    is_named = is_named || contains(kModelNames, part) || (part.size() > 2 && type.find(part) != std::string::npos);
  }
  return hints.has ? without > with : is_named && !type.empty();
}

/// Removes the prefix of a module that holds the model as its attribute `model`.
void undouble(std::vector<ModelTensor>& tensors, const ModelHints& hints) {
  if (is_in_module(tensors, hints)) {
    for (ModelTensor& each : tensors) each.name.erase(0, kModelPrefix.size());
  }
  while (has_outer_model(tensors)) {
    for (ModelTensor& each : tensors) {
      if (each.name.starts_with(kModelPrefix)) each.name.erase(0, kModelPrefix.size());
    }
  }
}

void check_names(const Catalog& source, const std::vector<ModelTensor>& tensors) {
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    const Tensor &a = source.tensors[tensors[i - 1].source], &b = source.tensors[tensors[i].source];
    if (tensors[i - 1].name != tensors[i].name || a.name == b.name) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("tensors '{}' and '{}' would both be named '{}'", a.name, b.name, tensors[i].name))
        .of_tensor(tensors[i].name)
        .of_kind(FindingKind::kDuplicateName)
        .suggest(Remedy::kExclude, b.name);
  }
}

/// Renames the tensors as PEFT does if they belong to an adapter.
void take_adapter(const Catalog& source, ModelPart& part) {
  const auto found = std::ranges::find_if(part.tensors, is_lora, &ModelTensor::name);
  if (found == part.tensors.end()) return;
  const std::string_view name = source.tensors[found->source].name;
  if (const std::string base = base_weight_beside(part.tensors); !base.empty()) {
    throw Error(ErrorCode::kUnsupported, "cannot export a model together with tensors of an adapter (LoRA)")
        .of_tensor(name)
        .because(fmt::format("'{}' changes '{}' by a product, which export does not compute", name, base));
  }
  const std::ptrdiff_t before = std::ssize(part.tensors);
  part.is_adapter = true;
  part.adapters = name_as_peft(part.tensors);
  part.other_tensors += before - std::ssize(part.tensors);
}

/// Removes the counter that torch's AveragedModel keeps beside the averages.
void drop_average_counter(ModelPart& part) {
  if (part.tensors.size() < 2) return;
  const auto is_counter = [](const ModelTensor& each) { return each.name == kAverages; };
  part.other_tensors += static_cast<std::int64_t>(std::erase_if(part.tensors, is_counter));
}

void refuse_flat_parameters(const std::vector<ModelTensor>& tensors) {
  const auto is_flat = [](const ModelTensor& each) { return each.name.ends_with(kFlatParameter); };
  const auto found = std::ranges::find_if(tensors, is_flat);
  if (found == tensors.end()) return;
  throw Error(ErrorCode::kUnsupported, "cannot export FSDP flat parameters")
      .of_tensor(found->name)
      .because(fmt::format("'{}' packs several parameters into one row, and the checkpoint does not record which",
                           found->name))
      .hint("save with SHARDED_STATE_DICT or FULL_STATE_DICT instead of LOCAL_STATE_DICT");
}

}  // namespace

std::string without_wrappers(std::string_view name) {
  std::string cleaned;
  bool is_wrapped = true;  // The part is at the beginning, or follows a wrapper's.
  for (std::string_view rest = name;;) {
    const std::size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    if (dot == std::string_view::npos) return cleaned.append(part);
    rest.remove_prefix(dot + 1);
    const bool is_wrapper = contains(kWrappers, part) || (is_wrapped && part == kDataParallel);
    if (!is_wrapper) cleaned.append(part).append(".");
    is_wrapped = is_wrapper;
  }
}

ModelPart find_model(const Catalog& source, const std::function<bool(std::string_view name)>& takes_part,
                     const ModelHints& hints) {
  std::vector<std::uint32_t> chosen;
  for (std::uint32_t i = 0; i < source.tensors.size(); ++i) {
    if (takes_part(source.tensors[i].name)) chosen.push_back(i);
  }
  exporting::Containers containers = exporting::find_containers(source, chosen, hints.takes_several);
  ModelPart part{.container = exporting::joined(containers.model), .beside = std::move(containers.beside)};
  part.choices = std::move(containers.choices);
  if (!part.choices.empty()) return part;
  const auto is_of_model = [&](const auto& entry) {
    if (!containers.model.empty()) return exporting::is_inside(entry.path, containers.model);
    return !exporting::is_other_state(entry.name, entry.path);
  };
  for (const std::uint32_t i : chosen) {
    const Tensor& tensor = source.tensors[i];
    if (is_of_model(tensor)) {
      part.tensors.push_back({i, clean(tensor.name, part.container)});
    } else {
      ++part.other_tensors;
    }
  }
  for (std::uint32_t i = 0; i < source.objects.size(); ++i) {
    if (!takes_part(source.objects[i].name)) continue;
    if (is_of_model(source.objects[i])) {
      part.objects.push_back(i);
    } else {
      ++part.other_objects;
    }
  }
  take_adapter(source, part);
  if (!part.is_adapter) {
    for (ModelTensor& each : part.tensors) each.name = without_adapter(each.name);
    drop_average_counter(part);
    undouble(part.tensors, hints);
  }
  std::ranges::stable_sort(part.tensors, {}, &ModelTensor::name);
  refuse_flat_parameters(part.tensors);
  if (part.adapters.size() < 2) check_names(source, part.tensors);
  part.renamed = std::ranges::count_if(
      part.tensors, [&](const ModelTensor& each) { return each.name != source.tensors[each.source].name; });
  return part;
}

}  // namespace shard

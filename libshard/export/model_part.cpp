#include "libshard/export/model_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "libshard/core/error.h"

namespace shard {

namespace {

constexpr std::array<std::string_view, 4> kWrappers{"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
                                                    "_forward_module"};
constexpr std::string_view kDataParallel = "module", kFlatParameter = "_flat_param";
constexpr std::string_view kModelPrefix = "model.", kAdapted = "base_model.model.";
/// Modules that transformers' models have beside the model proper.
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
/// What the classes of several families call the model proper; those of others call it by its type.
constexpr std::array<std::string_view, 2> kModelNames{"transformer", "backbone"};

/// The containers that trainers keep a model in, the surest first: parts joined by '.'.
constexpr std::array<std::string_view, 7> kModels{"model",       "state_dict", "model_state_dict", "app.model",
                                                  "state.model", "module",     "model_state"};
/// First parts of names that are not a model's.
constexpr std::array<std::string_view, 24> kOthers{"optimizer",
                                                   "optim",
                                                   "optimizers",
                                                   "optimizer_state",
                                                   "optimizer_states",
                                                   "optimizer_state_dict",
                                                   "optim_state",
                                                   "lr_scheduler",
                                                   "lr_schedulers",
                                                   "scheduler",
                                                   "schedulers",
                                                   "scheduler_state_dict",
                                                   "dataloader",
                                                   "train_state",
                                                   "rng_state",
                                                   "rng_states",
                                                   "rng",
                                                   "rng_tracker",
                                                   "extra_state",
                                                   "loops",
                                                   "callbacks",
                                                   "scaler",
                                                   "grad_scaler",
                                                   "trainer_state"};

template <class List>
bool contains(const List& list, std::string_view word) {
  return std::ranges::find(list, word) != list.end();
}

std::string_view first_part(std::string_view name) { return name.substr(0, name.find('.')); }

/// Whether the entry's path leads through `container` and further on.
template <class Entry>
bool lies_in(const Entry& entry, std::string_view container) {
  std::size_t part = 0;
  for (std::string_view rest = container; !rest.empty(); ++part) {
    const std::string_view key = first_part(rest);
    if (part + 1 >= entry.path.size() || entry.path[part].key() != key) return false;
    rest.remove_prefix(std::min(rest.size(), key.size() + 1));
  }
  return true;
}

std::string find_container(const Catalog& source) {
  for (const std::string_view container : kModels) {
    const auto is_inside = [&](const Tensor& tensor) { return lies_in(tensor, container); };
    if (std::ranges::any_of(source.tensors, is_inside)) return std::string(container);
  }
  return {};
}

/// Megatron-core's name of what one of several optimizers holds.
bool is_of_chained_optimizer(std::string_view name) {
  return name.starts_with("chained_") && name.substr(first_part(name).size()).starts_with(".optimizer.");
}

template <class Entry>
bool is_of_model(const Entry& entry, std::string_view container) {
  if (!container.empty()) return lies_in(entry, container);
  return !contains(kOthers, first_part(entry.name)) && !is_of_chained_optimizer(entry.name);
}

std::string clean(std::string_view name, std::string_view container) {
  if (!container.empty()) name.remove_prefix(std::min(name.size(), container.size() + 1));
  std::string cleaned = without_wrappers(name);
  if (cleaned.starts_with(kAdapted)) cleaned.erase(0, kAdapted.size());
  return cleaned;
}

/// Whether some name begins with `model.` twice, or a head, which has no module above it, with it once.
bool has_outer_model(const std::vector<ModelTensor>& tensors) {
  return std::ranges::any_of(tensors, [](const ModelTensor& each) {
    if (!each.name.starts_with(kModelPrefix)) return false;
    const std::string_view inner = std::string_view(each.name).substr(kModelPrefix.size());
    return inner.starts_with(kModelPrefix) || contains(kHeads, first_part(inner));
  });
}

/// Whether all names begin with `model.`, and the hints tell that a module outside of the model does it.
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

/// A module that holds the model as its attribute `model` puts that before all names.
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

void refuse_adapters(const Catalog& source, const std::vector<ModelTensor>& tensors) {
  const auto found = std::ranges::find_if(tensors, is_lora, &ModelTensor::name);
  if (found == tensors.end()) return;
  const std::string_view name = source.tensors[found->source].name;
  throw Error(ErrorCode::kUnsupported, "cannot export a checkpoint with tensors of an adapter (LoRA)")
      .of_tensor(name)
      .because(fmt::format("'{}' changes another tensor by a product, which export does not compute", name))
      .hint("merge the adapter first, as peft's merge_and_unload() does");
}

void refuse_flat_parameters(const std::vector<ModelTensor>& tensors) {
  const auto is_flat = [](const ModelTensor& each) { return each.name.ends_with(kFlatParameter); };
  const auto found = std::ranges::find_if(tensors, is_flat);
  if (found == tensors.end()) return;
  throw Error(ErrorCode::kUnsupported, "cannot export flat parameters of FSDP")
      .of_tensor(found->name)
      .because(
          fmt::format("'{}' holds several parameters in one row, and the checkpoint does not say which", found->name))
      .hint("save with SHARDED_STATE_DICT or FULL_STATE_DICT instead of LOCAL_STATE_DICT");
}

}  // namespace

std::string without_wrappers(std::string_view name) {
  std::string cleaned;
  bool is_wrapped = true;  // The part stands at the beginning, or after a wrapper's.
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

bool is_lora(std::string_view name) {
  return name.starts_with("lora_") || name.find(".lora_") != std::string_view::npos;
}

ModelPart find_model(const Catalog& source, const std::function<bool(std::string_view name)>& takes_part,
                     const ModelHints& hints) {
  ModelPart part{.container = find_container(source)};
  for (std::uint32_t i = 0; i < source.tensors.size(); ++i) {
    const Tensor& tensor = source.tensors[i];
    if (!takes_part(tensor.name)) continue;
    if (is_of_model(tensor, part.container)) {
      part.tensors.push_back({i, clean(tensor.name, part.container)});
    } else {
      ++part.other_tensors;
    }
  }
  for (std::uint32_t i = 0; i < source.objects.size(); ++i) {
    if (!takes_part(source.objects[i].name)) continue;
    if (is_of_model(source.objects[i], part.container)) {
      part.objects.push_back(i);
    } else {
      ++part.other_objects;
    }
  }
  undouble(part.tensors, hints);
  std::ranges::stable_sort(part.tensors, {}, &ModelTensor::name);
  refuse_adapters(source, part.tensors);
  refuse_flat_parameters(part.tensors);
  check_names(source, part.tensors);
  part.renamed = std::ranges::count_if(
      part.tensors, [&](const ModelTensor& each) { return each.name != source.tensors[each.source].name; });
  return part;
}

}  // namespace shard

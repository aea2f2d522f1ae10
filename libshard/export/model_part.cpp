#include "libshard/export/model_part.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "libshard/catalog/targets/target.h"
#include "libshard/core/ascii.h"
#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/export/adapter.h"

namespace shard {

namespace {

// The containers of a training checkpoint: which one holds the model, and which hold other states.

struct Containers {
  std::vector<std::string> model{};    ///< Keys from the root to the model's tensors; empty: they are in no container.
  std::vector<BesideModel> beside{};   ///< Other containers that may hold a model.
  std::vector<std::string> choices{};  ///< Several containers with a model, if no key identifies the right one.
};

/// Keys joined by '.', as names of tensors begin.
std::string joined(std::span<const std::string> keys) { return fmt::format("{}", fmt::join(keys, ".")); }

/// The keys under which trainers store a model, the most certain first. Keys of one model among several (`generator`)
/// and of averages of one (`ema`) are not included.
constexpr std::array<std::string_view, 12> kModels{
    "model",         "state_dict", "model_state_dict", "module", "model_state", "network_weights",
    "model_weights", "net",        "network",          "params", "state",       "app"};
/// The ones among them that may contain other states in addition to the model.
constexpr std::array<std::string_view, 2> kOuter{"state", "app"};
/// The keys inside a different container, in which a model's own modules may have names like the others.
constexpr std::array<std::string_view, 4> kInner{"model", "state_dict", "model_state_dict", "module"};
/// Keys of whole models and of averages of one. Other keys count if the names below them are those of a state_dict.
constexpr std::array<std::string_view, 24> kOtherModels{
    "generator",     "discriminator", "critic",    "actor",     "policy",         "value",          "ref",
    "reward",        "ema",           "ema_model", "model_ema", "ema_state_dict", "state_dict_ema", "params_ema",
    "generator_ema", "teacher",       "student",   "target",    "net_g",          "net_d",          "netG",
    "netD",          "weights",       "best_model"};
/// Keys of states that are not a model's.
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
/// Words, separated by '_', that identify such a state: optimizer_policy, amp_scaler.
constexpr std::array<std::string_view, 11> kOtherWords{"optimizer", "optimizers", "optim",    "opt",
                                                       "scheduler", "schedulers", "scaler",   "rng",
                                                       "sampler",   "dataloader", "callbacks"};

/// The limit on nested containers that are searched.
constexpr std::size_t kMostDepth = 8;

std::string_view first_part(std::string_view name) { return name.substr(0, name.find('.')); }

bool has_other_word(std::string_view key) {
  while (!key.empty()) {
    const std::size_t end = key.find('_');
    if (contains(kOtherWords, key.substr(0, end))) return true;
    key.remove_prefix(end == std::string_view::npos ? key.size() : end + 1);
  }
  return false;
}

/// Whether a container belongs to an optimizer or a similar state.
bool is_other_key(std::string_view key) {
  return contains(kOthers, key) || has_other_word(key) || key.starts_with("optimizer");
}

/// Whether this is Megatron-Core's name for the state of one of several optimizers.
bool is_of_chained_optimizer(std::string_view name) {
  return name.starts_with("chained_") && name.substr(first_part(name).size()).starts_with(".optimizer.");
}

/// The tensors below one key.
struct Group {
  PathPart key{};
  std::string text{};
  std::vector<std::uint32_t> tensors{};
  bool is_state_dict = false;  ///< A key below it contains dots, like the names of modules' parameters.
};

/// The tensors at one depth of the tree.
struct Level {
  std::vector<Group> groups{};          ///< Sorted by name.
  std::vector<std::uint32_t> leaves{};  ///< Tensors that are in no container below.
  bool has_dotted_leaves = false;

  const Group* find(std::string_view text) const {
    const auto found = std::ranges::find(groups, text, &Group::text);
    return found == groups.end() ? nullptr : &*found;
  }
};

bool has_dot(const PathPart& part) { return part.key().find('.') != std::string_view::npos; }

Level look_at(const Catalog& source, std::span<const std::uint32_t> tensors, std::size_t depth) {
  Level level;
  std::map<std::string, std::size_t> group_of;
  for (const std::uint32_t index : tensors) {
    const Path& path = source.tensors[index].path;
    if (path.size() <= depth + 1) {
      level.leaves.push_back(index);
      const bool is_dotted =
          path.empty() ? source.tensors[index].name.find('.') != std::string_view::npos : has_dot(path.back());
      level.has_dotted_leaves = level.has_dotted_leaves || is_dotted;
      continue;
    }
    const auto [found, is_new] = group_of.try_emplace(path[depth].text(), level.groups.size());
    if (is_new) level.groups.push_back({path[depth], found->first});
    Group& group = level.groups[found->second];
    group.tensors.push_back(index);
    group.is_state_dict = group.is_state_dict || has_dot(path.back());
    for (std::size_t i = depth + 1; !group.is_state_dict && i < std::min(path.size(), kMostDepth); ++i) {
      group.is_state_dict = has_dot(path[i]);
    }
  }
  return level;
}

/// Whether a container at `depth` that may contain other states has a model in it.
bool holds_model(const Catalog& source, const Group& group, std::size_t depth) {
  const Level inner = look_at(source, group.tensors, depth + 1);
  return inner.find("model") != nullptr || inner.has_dotted_leaves;
}

/// The container that is certain to be the model's, or null.
const Group* sure_model(const Catalog& source, const Level& level, std::size_t depth) {
  const std::span<const std::string_view> keys =
      depth == 0 ? std::span<const std::string_view>(kModels) : std::span<const std::string_view>(kInner);
  for (const std::string_view key : keys) {
    const Group* group = level.find(key);
    if (group != nullptr && (!contains(kOuter, key) || holds_model(source, *group, depth))) return group;
  }
  return nullptr;
}

class Search {
 public:
  /// \param takes_several  several models count as one, under their keys
  Search(const Catalog& source, bool takes_several) : source_(source), takes_several_(takes_several) {}

  /// Examines the tensors with these indices. Cost: linear in their names and paths.
  Containers run(std::span<const std::uint32_t> tensors) {
    std::vector<std::uint32_t> inside(tensors.begin(), tensors.end());
    while (found_.model.size() < kMostDepth && descend(inside)) continue;
    return std::move(found_);
  }

 private:
  std::string name_of(const Group& group) const {
    std::vector<std::string> keys = found_.model;
    keys.push_back(group.text);
    return joined(keys);
  }

  /// Enters the model's container at this depth. \returns false if there is none.
  bool descend(std::vector<std::uint32_t>& inside) {
    const std::size_t depth = found_.model.size();
    const Level level = look_at(source_, inside, depth);
    const Group* chosen = sure_model(source_, level, depth);
    if (chosen == nullptr && !level.has_dotted_leaves) {
      chosen = only_model(level, depth);
      if (chosen != nullptr) add_leaves(level);
    }
    if (chosen == nullptr) return false;
    for (const Group& group : level.groups) {
      if (&group == chosen || is_other_key(group.text)) continue;
      found_.beside.push_back({name_of(group), std::ssize(group.tensors)});
    }
    found_.model.push_back(chosen->text);
    inside = chosen->tensors;
    return true;
  }

  void add_leaves(const Level& level) {
    for (const std::uint32_t leaf : level.leaves) {
      const std::string_view name = source_.tensors[leaf].name;
      if (!is_trainer_state(name, {})) found_.beside.push_back({std::string(name), 1});
    }
  }

  /// The only container with a model, judged by its content or its key. If there are several, they are choices.
  const Group* only_model(const Level& level, std::size_t depth) {
    std::vector<const Group*> models;
    for (const Group& group : level.groups) {
      const bool is_model = group.is_state_dict || contains(kOtherModels, group.text);
      // Below the model's own container, only a list can be one of several models.
      if (is_model && !is_other_key(group.text) && (depth == 0 || group.key.is_index)) models.push_back(&group);
    }
    if (models.size() == 1) return models.front();
    if (models.size() > 1 && !takes_several_) {
      for (const Group* group : models) found_.choices.push_back(name_of(*group));
    }
    return nullptr;
  }

  const Catalog& source_;
  const bool takes_several_;
  Containers found_;
};

/// True if `path` leads through `container` and continues below it.
bool is_inside(const Path& path, std::span<const std::string> container) {
  if (path.size() <= container.size()) return false;
  for (std::size_t i = 0; i < container.size(); ++i) {
    if (path[i].text() != container[i]) return false;
  }
  return true;
}

constexpr std::array<std::string_view, 4> kWrappers{"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
                                                    "_forward_module"};
constexpr std::string_view kDataParallel = "module";
constexpr std::string_view kModelPrefix = "model.", kDecoder = "decoder.", kAverages = "n_averaged";
/// Modules of transformers' models outside of the base model.
constexpr std::array<std::string_view, 11> kHeads{"lm_head",
                                                  "embed_out",
                                                  "cls",
                                                  "classifier",
                                                  "score",
                                                  "qa_outputs",
                                                  "vocab_projector",
                                                  "generator_predictions",
                                                  "ctc_head",
                                                  "embedding_proj_layer",
                                                  "pre_classifier"};
/// Modules outside of the base model in some families, and inside of it in others (Grounding DINO's).
constexpr std::array<std::string_view, 3> kProjections{"logit_scale", "text_projection", "visual_projection"};
/// The names of the base model in the classes of several families, and of parts that no base model has (BLIP's and
/// Kosmos'). Other families use the model's type.
constexpr std::array<std::string_view, 4> kModelNames{"transformer", "qformer", "text_decoder",
                                                      "image_to_text_projection"};
/// A base model too (Mamba's), but a part of it beside a decoder (RT-DETR's).
constexpr std::string_view kBackbone = "backbone";
/// The type of models one of whose classes has a detector as its attribute `model`, beside modules of its own.
constexpr std::string_view kDetector = "rf_detr";

/// A name without its container and without the parts that wrappers add.
std::string clean(std::string_view name, std::string_view container) {
  if (!container.empty()) name.remove_prefix(std::min(name.size(), container.size() + 1));
  return without_wrappers(name);
}

/// Whether some name begins with `model.` twice, or that of a head, which is in no other module than the decoder of
/// some pairs of models (Pix2Struct's), once.
bool has_outer_model(const std::vector<ModelTensor>& tensors, const ModelHints& hints) {
  const auto has_prefix = [](const ModelTensor& each) { return each.name.starts_with(kModelPrefix); };
  const bool are_all_inside = std::ranges::all_of(tensors, has_prefix);
  if (!are_all_inside && hints.type == kDetector) return false;
  return std::ranges::any_of(tensors, [&](const ModelTensor& each) {
    if (!has_prefix(each)) return false;
    std::string_view inner = std::string_view(each.name).substr(kModelPrefix.size());
    if (inner.starts_with(kModelPrefix)) return true;
    if (inner.starts_with(kDecoder)) inner.remove_prefix(kDecoder.size());
    return contains(kHeads, first_part(inner)) || (are_all_inside && contains(kProjections, first_part(inner)));
  });
}

/// Whether most names are those of the reference's weights.
bool are_known(const std::vector<ModelTensor>& tensors, const ModelHints& hints) {
  const auto is_known = [&](const ModelTensor& each) { return hints.has(each.name); };
  return hints.has && 2 * std::ranges::count_if(tensors, is_known) > std::ssize(tensors);
}

/// Whether all names begin with `model.`, and the hints show that a module outside of the model causes it.
bool is_in_module(const std::vector<ModelTensor>& tensors, const ModelHints& hints) {
  std::size_t with = 0, without = 0;
  bool is_named = false, has_backbone = false, has_decoder = false;
  std::string type = hints.type;
  std::ranges::replace(type, '-', '_');
  for (const ModelTensor& each : tensors) {
    if (!each.name.starts_with(kModelPrefix)) return false;
    const std::string_view inner = std::string_view(each.name).substr(kModelPrefix.size()), part = first_part(inner);
    if (hints.has && hints.has(each.name)) ++with;
    if (hints.has && hints.has(inner)) ++without;
    is_named = is_named || contains(kModelNames, part) || (part.size() > 2 && type.find(part) != std::string::npos);
    has_backbone = has_backbone || part == kBackbone;
    has_decoder = has_decoder || inner.starts_with(kDecoder);
  }
  if (hints.has) return without > with;
  return (is_named || (has_backbone && !has_decoder)) && !type.empty();
}

/// Removes the prefix of a module that holds the model as its attribute `model`.
void undouble(std::vector<ModelTensor>& tensors, const ModelHints& hints) {
  if (is_in_module(tensors, hints)) {
    for (ModelTensor& each : tensors) each.name.erase(0, kModelPrefix.size());
  }
  for (std::size_t depth = 0; depth < kMostDepth && !are_known(tensors, hints) && has_outer_model(tensors, hints);
       ++depth) {
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

/// Renames the tensors as PEFT does if they belong to an adapter. In PEFT's own file, the types without a `lora_` (IA3,
/// LoHa, prompts) have their final names.
void take_adapter(const Catalog& source, ModelPart& part, bool is_adapters_file) {
  const auto found = std::ranges::find_if(part.tensors, is_lora, &ModelTensor::name);
  if (found == part.tensors.end()) {
    part.is_adapter = is_adapters_file;
    for (ModelTensor& each : part.tensors) {
      if (is_adapters_file) each.name = source.tensors[each.source].name;
    }
    return;
  }
  const auto other = std::ranges::find_if(part.tensors, is_lora_of_other_tool, &ModelTensor::name);
  if (other != part.tensors.end()) throw refused_names_of_other_tool(other->name);
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
  for (const ModelTensor& each : tensors) {
    if (const std::optional<Error> refusal = refused_flat_parameter(each.name, "export")) throw *refusal;
  }
}

}  // namespace

bool is_trainer_state(std::string_view name, const Path& path) {
  if (path.size() > 1 && is_other_key(path[0].text())) return true;
  return contains(kOthers, first_part(name)) || is_of_chained_optimizer(name);
}

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

std::optional<Error> refused_flat_parameter(std::string_view name, std::string_view doing) {
  if (!is_flat_parameter(name)) return std::nullopt;
  Error error(ErrorCode::kUnsupported, fmt::format("cannot {} FSDP flat parameters", doing));
  error.of_tensor(name);
  if (is_digit(name.back())) {
    return error.because(fmt::format("'{}' packs several parameters into one row, as fairscale and metaseq do", name))
        .hint(
            "join the ranks' files with fairscale (FullyShardedDataParallel.consolidate_shard_weights) or metaseq "
            "(metaseq.scripts.consolidate_fsdp_shards), and read the result");
  }
  return error
      .because(
          fmt::format("'{}' packs several parameters into one row, and the checkpoint does not record which", name))
      .hint(kSaveWithoutFlatParameters);
}

ModelPart find_model(const Catalog& source, const std::function<bool(std::string_view name)>& takes_part,
                     const ModelHints& hints) {
  std::vector<std::uint32_t> chosen;
  for (std::uint32_t i = 0; i < source.tensors.size(); ++i) {
    if (takes_part(source.tensors[i].name)) chosen.push_back(i);
  }
  Containers containers = Search(source, hints.takes_several).run(chosen);
  ModelPart part{.container = joined(containers.model), .beside = std::move(containers.beside)};
  part.choices = std::move(containers.choices);
  if (!part.choices.empty()) return part;
  const auto is_of_model = [&](const auto& entry) {
    if (!containers.model.empty()) return is_inside(entry.path, containers.model);
    return !is_trainer_state(entry.name, entry.path);
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
  take_adapter(source, part, hints.is_adapters_file);
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

namespace {

class ModelReader final : public Reader {
 public:
  ModelReader(std::unique_ptr<Reader> inner, const ModelPart& part)
      : inner_(std::move(inner)), catalog_(inner_->catalog()), objects_(part.objects) {
    catalog_.borrowed.push_back(catalog_.arena);
    catalog_.arena = std::make_shared<Arena>();
    catalog_.root = nullptr;
    catalog_.rank_files.reset();
    catalog_.warnings = part.warnings;
    take_tensors(part);
    take_objects();
  }

  const Catalog& catalog() const override { return catalog_; }

  void locate(std::span<const std::uint32_t> tensors) override {
    std::vector<std::uint32_t> wanted;
    wanted.reserve(tensors.size());
    for (const std::uint32_t tensor : tensors) wanted.push_back(sources_[tensor]);
    inner_->locate(wanted);
    catalog_.storages = inner_->catalog().storages;
    catalog_.stored = inner_->catalog().stored;
    catalog_.chunks = inner_->catalog().chunks;
  }

  void load_objects() override {
    inner_->load_objects();
    catalog_.borrowed.push_back(inner_->catalog().arena);
    take_objects();
  }
  std::int64_t unread_object_bytes() const override { return inner_->unread_object_bytes(); }
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return inner_->file(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    return inner_->bytes_of(storage);
  }
  bool check_container(std::uint32_t file, ContainerReport& report) const override {
    return inner_->check_container(file, report);
  }

 private:
  void take_objects() {
    catalog_.objects.clear();
    for (const std::uint32_t object : objects_) catalog_.objects.push_back(inner_->catalog().objects[object]);
  }

  /// Tensors that share bytes refer to the first of them by name, which may now be a different one.
  void take_tensors(const ModelPart& part) {
    const std::vector<Tensor>& source = inner_->catalog().tensors;
    std::vector<std::uint32_t> first_of(source.size(), kNoIndex);
    catalog_.tensors.clear();
    catalog_.tensors.reserve(part.tensors.size());
    for (const ModelTensor& each : part.tensors) {
      Tensor tensor = source[each.source];
      std::uint32_t& first = first_of[inner_->catalog().original_of(each.source)];
      tensor.alias_of = first;
      if (first == kNoIndex) first = static_cast<std::uint32_t>(catalog_.tensors.size());
      tensor.name = catalog_.arena->copy(each.name);
      tensor.path = {};
      catalog_.tensors.push_back(tensor);
      sources_.push_back(each.source);
    }
  }

  std::unique_ptr<Reader> inner_;
  Catalog catalog_;
  std::vector<std::uint32_t> objects_;  ///< The objects of inner_ that are kept.
  std::vector<std::uint32_t> sources_;  ///< By tensor: its index in inner_.
};

}  // namespace

std::unique_ptr<Reader> model_reader(std::unique_ptr<Reader> inner, const ModelPart& part) {
  return std::make_unique<ModelReader>(std::move(inner), part);
}

}  // namespace shard

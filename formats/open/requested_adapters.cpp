#include "formats/open/requested_adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "formats/export/model_folder.h"
#include "formats/open/map_choice.h"
#include "libshard/compute/computed_reader.h"
#include "libshard/compute/foreign_adapter.h"
#include "libshard/compute/merge_adapters.h"
#include "libshard/compute/requantize.h"
#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/core/object_faults.h"
#include "libshard/core/short_text.h"
#include "libshard/export/adapter.h"
#include "libshard/export/model_part.h"
#include "libshard/export/tied_weights.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard {

namespace {

constexpr std::string_view kConfig = "adapter_config.json", kLitGpt = "lit_model.pth.lora";

std::string config_of(const SourceStore& store, const std::string& path) {
  const bool is_folder = store.is_folder(path);
  return join_path(is_folder ? path : parent_path(path), kConfig);
}

/// Nothing if the adapter has no configuration.
std::optional<AdapterConfig> read_config(const SourceStore& store, const std::string& path) {
  const std::string config = config_of(store, path);
  if (!store.exists(config)) return std::nullopt;
  return parse_adapter_config(whole_text(*store.open(config), AdapterConfig::kMostBytes), config);
}

/// \param file  the file of the adapter at `path`
Error without_config(const SourceStore& store, const std::string& path, const std::string& file) {
  if (base_name(file) == kLitGpt) {
    return Error(ErrorCode::kUnsupported, fmt::format("cannot merge {}: it is an adapter of LitGPT", path))
        .in_file(file)
        .hint("merge it with: litgpt merge_lora FOLDER, and read the lit_model.pth that this writes");
  }
  const std::string config = config_of(store, path);
  return Error(ErrorCode::kNotFound, fmt::format("cannot merge {}: {} is missing", path, config))
      .in_file(config)
      .because("it contains the scale of the adapter")
      .hint("copy adapter_config.json of the training run to that folder");
}

Error no_adapter_in(const Catalog& catalog, const std::string& path) {
  const auto other = std::ranges::find_if(catalog.tensors, is_lora_of_other_tool, &Tensor::name);
  if (other != catalog.tensors.end()) return refused_names_of_other_tool(other->name);
  return Error(ErrorCode::kInvalidArgument, fmt::format("cannot merge {}: it contains no adapter", path))
      .in_file(path)
      .because("no tensor has the name of a LoRA factor, such as lora_A");
}

/// The file of PEFT, diffusers or LitGPT in a folder, or else the path itself.
std::string source_of(const SourceStore& store, const std::string& path) {
  if (!store.is_folder(path)) return path;
  for (const std::string_view name : std::array<std::string_view, 4>{"adapter_model.safetensors", "adapter_model.bin",
                                                                     "pytorch_lora_weights.safetensors", kLitGpt}) {
    const std::string file = join_path(path, name);
    if (store.is_file(file)) return file;
  }
  return path;
}

bool is_of_adapter(std::string_view name) {
  return is_lora(name) || name.find("modules_to_save.") != std::string_view::npos;
}

/// The tensors of the adapter, also if those of the base model are beside them.
ModelPart find_adapter(const Catalog& catalog) {
  try {
    return find_model(catalog, [](std::string_view) { return true; });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    return find_model(catalog, is_of_adapter);
  }
}

/// An adapter of diffusers or Kohya's scripts, whose names are compared with those in SRC.
Adapter foreign_adapter(std::unique_ptr<Reader> reader, const AdapterRequest& wanted, const Catalog& base) {
  ForeignAdapter found = read_foreign_adapter(reader, base, wanted.path);
  ModelPart part;
  for (ForeignAdapter::Factor& each : found.factors) part.tensors.push_back({each.tensor, std::move(each.name)});
  std::ranges::sort(part.tensors, {}, &ModelTensor::name);
  return {.reader = model_reader(std::move(reader), part),
          .config = std::move(found.config),
          .weight = wanted.weight,
          .label = wanted.path,
          .warnings = std::move(found.warnings)};
}

Adapter open_adapter(const SourcePlace& place, const SourceRequest& request, const AdapterRequest& wanted,
                     const SourceOptions& options, ObjectFaults& faults, const Catalog& base) {
  std::optional<AdapterConfig> config = read_config(place.store, wanted.path);  // Names forms that are not supported.
  SourceRequest own;
  own.paths = {source_of(place.store, wanted.path)};
  own.opaque_globals = request.opaque_globals;
  OpenSource source =
      open_source(place, own, {.findings = &faults, .on_step = options.on_step, .on_detail = options.on_detail});
  if (!config && is_foreign_adapter(source.catalog())) return foreign_adapter(std::move(source.reader), wanted, base);
  const ModelPart part = find_adapter(source.catalog());
  if (!part.is_adapter) throw no_adapter_in(source.catalog(), wanted.path);
  if (part.adapters.size() > 1) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot merge {}: it contains several adapters", wanted.path))
        .in_file(wanted.path)
        .found(first_names(part.adapters))
        .suggest(Remedy::kOneAdapter);
  }
  if (!config) throw without_config(place.store, wanted.path, own.paths.front());
  return {.reader = model_reader(std::move(source.reader), part),
          .config = *std::move(config),
          .weight = wanted.weight,
          .label = wanted.path};
}

/// Refuses to change only one of two tied parameters. If the base model stores one of them, its config.json decides
/// whether the other one repeats it.
class TieCheck {
 public:
  TieCheck(const SourceStore& store, const OpenSource& source)
      : store_(store), source_(source), ties_(absent_ties(source.catalog())) {
    const std::vector<Tensor>& tensors = source.catalog().tensors;
    std::vector<SelectedTensor> all;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) all.push_back({i, tensors[i].dtype, tensors[i].name, {}});
    const auto root = [&](std::size_t i) { return source.catalog().original_of(static_cast<std::uint32_t>(i)); };
    for (const TiedPair& pair : find_tied(all)) {
      if (root(pair.repeated) == root(pair.original)) continue;  // A merge changes both.
      twice_.emplace_back(tensors[pair.repeated].name, tensors[pair.original].name);
    }
  }

  void check(const Adapter& adapter) {
    for (const auto& [repeated, original] : twice_) check_both(adapter, repeated, original);
    if (ties_.empty()) return;
    for (const Tensor& tensor : adapter.reader->catalog().tensors) {
      if (tensor.name.find(".base_layer") == std::string_view::npos) check(adapter, tensor.name);
    }
  }

 private:
  static Error only_one(const Adapter& adapter, std::string_view name) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("cannot merge {}: '{}' is only one of two tied parameters", adapter.label, name))
        .of_tensor(name);
  }

  /// Checks a pair of which the base model stores both. PEFT merges into one parameter, which both are.
  void check_both(const Adapter& adapter, std::string_view repeated, std::string_view original) {
    const auto factor_of = [&](std::string_view target) {
      const auto is_factor = [&](const Tensor& tensor) {
        const std::size_t factor = tensor.name.find(".lora_");
        return factor != std::string_view::npos &&
               ends_with_part(std::string(tensor.name.substr(0, factor)) + ".weight", target);
      };
      return std::ranges::find_if(adapter.reader->catalog().tensors, is_factor);
    };
    const auto none = adapter.reader->catalog().tensors.end(), of_repeated = factor_of(repeated),
               of_original = factor_of(original);
    if ((of_repeated == none && of_original == none) || !ties()) return;
    throw only_one(adapter, (of_repeated == none ? of_original : of_repeated)->name)
        .because(
            fmt::format("config.json ties '{}' and '{}', which the base model stores separately", repeated, original))
        .hint(fmt::format("copy the base model without '{}', or merge it with the library that trained it", repeated));
  }

  void check(const Adapter& adapter, std::string_view name) {
    constexpr std::string_view kWrapper = "base_model.model.";
    const std::size_t factor = name.find(".lora_");
    const bool is_saved = factor == std::string_view::npos;
    const std::string parameter = is_saved ? std::string(name) : std::string(name.substr(0, factor)) + ".weight";
    for (const AbsentTie& tie : ties_) {
      const bool is_repeated = ends_with_part(parameter, tie.repeated);
      if (!is_repeated && !(is_saved && ends_with_part(parameter, tie.original))) continue;
      // A model without a head may have its embedding at the top.
      const bool is_at_top = parameter == tie.original || parameter == std::string(kWrapper).append(tie.original);
      const bool has_no_head = adapter.config.has_no_head || (is_at_top && tie.original != "shared.weight");
      if (is_repeated ? !may_tie() : has_no_head || !ties()) continue;
      throw only_one(adapter, name)
          .because(fmt::format("the base model stores '{}' also for '{}'", tie.tensor, tie.repeated))
          .hint("merge it with the library that trained it, which stores both");
    }
  }

  /// Models of these types tie by default, and their configuration often does not record it.
  bool ties() {
    constexpr std::array<std::string_view, 9> kTieByDefault{"gemma", "gemma2", "gemma3", "gemma3_text", "gpt2",
                                                            "opt",   "bloom",  "t5",     "bart"};
    if (!config()) return false;
    const bool ties_by_default = std::ranges::find(kTieByDefault, config()->type) != kTieByDefault.end();
    return config()->states_ties ? config()->ties_embeddings : ties_by_default;
  }
  bool may_tie() { return !config() || config()->ties_embeddings || !config()->states_ties; }

  const std::optional<ModelConfig>& config() {
    if (is_read_ || source_.paths.empty()) return config_;
    is_read_ = true;
    const std::string& path = source_.paths.front();
    const std::string folder = find_model_folder(store_, path, path).path;
    if (!folder.empty()) config_ = read_model_config(store_, folder);
    return config_;
  }

  const SourceStore& store_;
  const OpenSource& source_;
  std::vector<AbsentTie> ties_;
  std::vector<std::pair<std::string_view, std::string_view>> twice_;  ///< Pairs that are stored separately.
  bool is_read_ = false;
  std::optional<ModelConfig> config_;
};

void merge(const SourcePlace& place, const SourceRequest& request, const SourceOptions& options,
           std::vector<Adapter> adapters, OpenSource& source) {
  if (adapters.empty()) return;
  TieCheck ties(place.store, source);
  for (const Adapter& adapter : adapters) ties.check(adapter);
  std::vector<MergedAdapter> counts;
  std::int64_t packed = 0;
  source.reader =
      request.requantize
          ? merge_and_requantize(std::move(source.reader), facts_beside(place.store, source, request.numbers.hf_ref),
                                 std::move(adapters), counts, packed)
          : merge_adapters(std::move(source.reader), std::move(adapters), counts, source.computed);
  const auto& merged = dynamic_cast<const ComputedReader&>(*source.reader);
  if (!request.requantize) source.computed.push_back(&merged);  // Codes have no value before they are rounded.
  if (options.on_computed) options.on_computed(merged);
  if (!options.on_note) return;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    options.on_note(fmt::format("merged {}: {} found, {} used, 0 unused; {} replaced", request.adapters[i].path,
                                plural(counts[i].pairs, "pair"), counts[i].pairs,
                                plural(counts[i].replaced, "tensor")));
  }
  if (request.requantize) options.on_note(fmt::format("packed {} again", plural(packed, "quantized weight")));
}

}  // namespace

std::vector<std::string> files_of_adapter(const SourceStore& store, const std::string& path) {
  const bool is_folder = store.is_folder(path);
  return is_folder ? std::vector{path} : std::vector{path, config_of(store, path)};
}

void undo_map_and_merge(const SourcePlace& place, const SourceRequest& request, const SourceOptions& options,
                        OpenSource& source) {
  std::vector<Adapter> adapters;
  for (const AdapterRequest& wanted : request.adapters) {
    source.faults_of_operands.push_back(std::make_shared<ObjectFaults>());
    adapters.push_back(
        open_adapter(place, request, wanted, options, *source.faults_of_operands.back(), source.catalog()));
  }
  const bool has_map = !request.map.empty();
  // The map may divide such parameters. Ranks' tensors are only whole after it.
  const auto has_names_of_source = [](const Adapter& adapter) { return !adapter.config.scales.empty(); };
  const bool is_merged_first =
      has_map && !open_map(place, request.map).has_mesh() &&
      (std::ranges::any_of(adapters, has_names_of_source) || change_experts(source.catalog(), adapters));
  if (is_merged_first) merge(place, request, options, std::move(adapters), source);
  if (has_map) undo_map(place, request, options.selection, source, options.on_step);
  if (!is_merged_first) merge(place, request, options, std::move(adapters), source);
}

}  // namespace shard

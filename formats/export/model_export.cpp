#include "formats/export/model_export.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/finder.h"
#include "formats/parts/hf_index/folder_names.h"
#include "formats/parts/hf_index/index_file.h"
#include "formats/parts/quantization/config.h"
#include "formats/registry.h"
#include "libshard/catalog/selection/casts.h"
#include "libshard/compare/equal_tensors.h"
#include "libshard/compute/find_formulas.h"
#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/suffixes.h"
#include "libshard/export/auto_dtypes.h"
#include "libshard/export/loader_files.h"
#include "libshard/export/tied_weights.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard {

namespace {

/// Prefix of moments and master weights in the names that maps produce.
constexpr std::string_view kMappedStates = "optimizer.state.";
constexpr std::size_t kMostRepeated = 8;
constexpr std::int64_t kMostConfig = 16 << 20;
constexpr const char *kModelStem = "diffusion_pytorch_model", *kAdapterStem = "adapter_model";

/// True if a catalog, which is sorted by name, has a tensor with that name.
bool has_tensor(const Catalog& catalog, std::string_view name) {
  return std::ranges::binary_search(catalog.tensors, name, {}, &Tensor::name);
}

/// Adds the matrices that the reference lacks, each with those of the reference that it may repeat.
void add_repeated(const Catalog& source, const Selection& selection, const Catalog& reference,
                  std::vector<TiedPair>& pairs) {
  std::vector<std::size_t> unknown, known;
  for (std::size_t i = 0; i < selection.tensors.size(); ++i) {
    const SelectedTensor& each = selection.tensors[i];
    if (source.tensors[each.source].shape.size() < 2) continue;
    (has_tensor(reference, each.name) ? known : unknown).push_back(i);
  }
  if (unknown.size() > kMostRepeated) return;  // These are the names of a different model.
  for (const std::size_t repeated : unknown) {
    const Tensor& tensor = source.tensors[selection.tensors[repeated].source];
    for (const std::size_t original : known) {
      const Tensor& other = source.tensors[selection.tensors[original].source];
      if (other.shape == tensor.shape && other.dtype == tensor.dtype) pairs.push_back({repeated, original, true});
    }
  }
}

/// The tensors whose dtype kAutoDtypes does not change.
LeftByAuto left_by_auto(const Selection& selection, const QuantizedPart& quantized, DType wanted,
                        const std::vector<bool>& decided) {
  HashSet<std::uint32_t> modules;
  LeftByAuto left;
  left.wanted = dtype_name(wanted);
  for (std::size_t i = 0; i < selection.tensors.size(); ++i) {
    if (decided[i]) continue;
    const SelectedTensor& each = selection.tensors[i];
    const std::uint32_t module = quantized.module_of[each.source];
    if (module != kNoIndex) {
      ++left.quantized_tensors;
      if (modules.insert(module)) left.modules.add(quantized.modules[module].name);
    } else if (is_float(each.dtype) && !is_plain_float(each.dtype)) {
      left.scaled.add(each.name);
    } else if (is_plain_float(each.dtype) && each.dtype != wanted) {
      left.wider.add(each.name);
    }
  }
  return left;
}

/// The names in a folder that are not in `known` and that no library needs.
std::vector<std::string> other_names(const SourceStore& store, const std::string& folder,
                                     const std::set<std::string, std::less<>>& known) {
  std::vector<std::string> others;
  for (const std::string& name : store.list(folder)) {
    if (!name.starts_with('.') && !known.contains(name)) others.push_back(name);
  }
  return others;
}

/// The safetensors files that the loader of a model's folder opens: the folder, an index, or one file. Empty if it
/// opens none, or if the folder has only the index of files that were not downloaded. Without files that the loader
/// knows, those of the source are not compared with themselves and the files beside them.
std::string loaded_weights(const SourceStore& store, const std::string& folder, Loader loader,
                           const std::vector<std::string>& source) {
  const std::vector<LoaderFiles> sets = loader_files(store.list(folder), loader);
  const auto is_inside = [&](const std::string& path) { return parent_path(path) == folder; };
  if (sets.empty()) return std::ranges::any_of(source, is_inside) ? std::string() : folder;
  const LoaderFiles& set = sets.front();
  if (set.suffix != kSafetensorsSuffix) return {};
  if (set.index.empty()) {
    const bool is_part = set.weights.size() > 1 || !hf_index::missing_part(set.weights, set.suffix).empty();
    return is_part ? folder : join_path(folder, set.weights.front());
  }
  const std::string index = join_path(folder, set.index);
  const std::vector<std::string> listed = hf_index::read_weight_map(*store.open(index)).files;
  const auto exists = [&](const std::string& name) { return store.exists(join_path(folder, name)); };
  if (!listed.empty() && std::ranges::none_of(listed, exists)) return {};
  return loader_format(set.suffix).detect({&store, {index}}) ? index : folder;
}

std::string first_component(std::string_view path) { return std::string(path.substr(0, path.find('/'))); }

/// The name in `folder` on the way to `path`; empty if the path is elsewhere.
std::string name_towards(const std::string& folder, const std::string& path) {
  const std::string inside = join_path(folder, "");
  return path.starts_with(inside) ? first_component(std::string_view(path).substr(inside.size())) : std::string();
}

/// Refuses the names of a model without its weights. ZeRO 3 leaves tensors of shape [0] in the module, and a trainer
/// that saves the module saves them. Most of the weights, because small ones may stay whole.
void refuse_shells(const std::vector<SelectedTensor>& tensors, const Catalog& source, const std::string& label) {
  std::int64_t weights = 0;
  FirstNames empty;
  for (const SelectedTensor& each : tensors) {
    if (!is_float(each.dtype)) continue;
    ++weights;
    const Dims shape = source.tensors[each.source].shape;
    if (shape.size() == 1 && shape[0] == 0) empty.add(each.name);
  }
  const auto count = static_cast<std::int64_t>(empty.count());
  if (count == 0 || 2 * count <= weights) return;
  throw Error(ErrorCode::kCorruption,
              fmt::format("{} of {} weights have no elements: {}", count, weights, empty.text()))
      .in_file(label)
      .because(
          "DeepSpeed's ZeRO 3 leaves empty weights in the module, and a trainer that saves it saves only their names")
      .hint("export the folder of the ranks' states (global_stepN), which has the weights");
}

}  // namespace

void ModelExport::find_files(TakenSource taken, const std::string& named) {
  taken_ = std::move(taken);
  report_.found = taken_.label;
  const bool is_loaded = !taken_.place.empty() && taken_.paths.front() != taken_.place;
  if (is_loaded) beside_ = reference_files(store_, taken_.place);
  const std::string& start = taken_.place.empty() ? taken_.paths.front() : taken_.place;
  adapter_folder_ = find_model_folder(store_, start, named, kAdapterConfigName);
  if (const std::string& stated = options_.reference; !stated.empty()) {
    folder_ = {stated};
    if (store_.is_file(join_path(stated, kAdapterConfigName))) adapter_folder_ = folder_;
  } else {
    has_own_reference_ = true;
    folder_ = find_model_folder(store_, start, named);
    if (folder_.path.empty()) folder_ = find_model_folder(store_, start, named, kOpenClipConfigName);
  }
  find_reference();
}

void ModelExport::find_reference() {
  if (folder_.path.empty()) return;
  const bool has_config = store_.exists(join_path(folder_.path, kConfigName));
  if (folder_.path == adapter_folder_.path && !has_config) return;  // An adapter's part has no weights of a model.
  const bool is_open_clip = !has_config && store_.is_file(join_path(folder_.path, kOpenClipConfigName));
  if (!is_open_clip) config_ = read_model_config(store_, folder_.path);
  facts_ = read_quantization(store_, folder_.path);
  reference_ = folder_.path;
  for (const std::string& name : model_files(store_, folder_, FilesOf::kModel, has_own_reference_).names) {
    if (name.find('/') != std::string::npos) beside_.push_back(join_path(folder_.path, name));
  }
}

/// The weights of the reference; null if there are none, or if they are the source.
std::unique_ptr<Reader> ModelExport::open_reference() {
  const bool is_source = taken_.place == folder_.path || taken_.paths.front() == folder_.path;
  if (folder_.path.empty() || is_source) return nullptr;
  const Loader loader = config_.is_diffusers ? Loader::kDiffusers : Loader::kTransformers;
  const std::string weights = loaded_weights(store_, folder_.path, loader, taken_.paths);
  if (weights.empty()) return nullptr;
  const Source reference{&store_, {weights}};
  const Format& of_reference = loader_format(kSafetensorsSuffix);
  if (!of_reference.detect(reference)) {
    if (weights != folder_.path) report_.unread_weights = weights;
    return nullptr;
  }
  std::unique_ptr<Reader> reader = of_reference.open(reference, {});
  // A quantized reference then has the names and shapes of plain weights.
  if (options_.dequantized) reader = dequantized(std::move(reader), *options_.dequantized, facts_);
  return reader;
}

/// Hints about the model's own names. With a map there are none, because its names differ.
ModelHints ModelExport::hints() const {
  const bool takes_several = !options_.names.include.empty();
  const bool is_adapters_file = !loader_files({base_name(taken_.paths.front())}, Loader::kPeft).empty();
  if (options_.is_mapped) return {.takes_several = takes_several, .is_adapters_file = is_adapters_file};
  ModelHints hints{.type = config_.type, .takes_several = takes_several, .is_adapters_file = is_adapters_file};
  if (reference_weights_) {
    hints.has = [this](std::string_view name) { return has_tensor(reference_weights_->catalog(), name); };
  }
  return hints;
}

ModelPart ModelExport::find_part(const Catalog& catalog) {
  if (options_.is_checked) reference_weights_ = open_reference();
  return find_model(catalog, chosen_names(), hints());
}

/// Loaders would dequantize the weights once more if the files beside them said so.
void ModelExport::state_plain_weights(DType dtype) {
  std::erase_if(carried_.files, [](const AddedFile& file) { return contains(kQuantizationFiles, file.path); });
  const auto config = std::ranges::find(carried_.files, kConfigName, &AddedFile::path);
  if (config == carried_.files.end()) return;
  const std::string text = whole_text(*config->open(), kMostConfig);
  const std::string name = join_path(folder_.path, config->path), plain = plain_config(text, name, dtype);
  config->bytes = std::ssize(plain);
  config->open = [held = held_in_memory(plain, name)] { return held; };
}

bool ModelExport::lacks_codes(const Catalog& catalog, const ModelPart& part) const {
  if (!facts_.is_quantized || options_.dequantized || is_adapter_) return false;
  return std::ranges::all_of(part.tensors, [&](const ModelTensor& each) {
    const DType dtype = catalog.tensors[each.source].dtype;
    return is_plain_float(dtype) || is_complex(dtype) || dtype == DType::kBool || dtype == DType::kInt64;
  });
}

void ModelExport::take(const Catalog& catalog, const ModelPart& part) {
  is_adapter_ = part.is_adapter;
  carried_ = carried_files(store_, is_adapter_ ? adapter_folder_ : folder_,
                           is_adapter_ ? FilesOf::kAdapter : FilesOf::kModel, has_own_reference_, options_.holds_files);
  if (options_.dequantized && !is_adapter_) state_plain_weights(*options_.dequantized);
  if (is_adapter_) report_.stem = kAdapterStem;
  if (!is_adapter_ && config_.is_diffusers) report_.stem = kModelStem;
  report_.container = part.container;
  report_.reference = is_adapter_ ? adapter_folder_.path : folder_.path;
  report_.renamed = part.renamed;
  report_.other_tensors = part.other_tensors;
  report_.objects = part.other_objects + std::ssize(part.objects);
  for (const AddedFile& file : carried_.files) report_.copied.push_back(file.path);
  report_.read_paths = carried_.paths;
  if (!taken_.place.empty()) {
    for (const File& file : catalog.files) report_.read_paths.push_back(join_path(taken_.place, file.path));
  }
  for (const ModelTensor& each : part.tensors) {
    const std::string_view name = catalog.tensors[each.source].name;
    if (name == each.name) continue;
    if (report_.renames.size() == options_.most_renames) break;
    report_.renames.emplace_back(name, each.name);
  }
}

ReferenceDifference ModelExport::adjust(Reader& source, Selection& selection) {
  report_.other_tensors += std::ssize(selection.tensors);
  std::erase_if(selection.tensors, [](const SelectedTensor& each) { return each.name.starts_with(kMappedStates); });
  report_.other_tensors -= std::ssize(selection.tensors);
  if (selection.tensors.empty()) {
    throw Error(ErrorCode::kCorruption, fmt::format("'{}' has no model tensors", taken_.label))
        .in_file(taken_.paths.front());
  }
  refuse_shells(selection.tensors, source.catalog(), taken_.label);
  const Catalog* const reference = is_adapter_ ? nullptr : reference_weights();
  if (!is_adapter_) drop_tied(source, selection, reference);
  change_dtypes(source.catalog(), selection);
  if (reference == nullptr) return {};
  report_.is_checked = true;
  return compare_with_reference(selection.tensors, source.catalog(), *reference, may_lack());
}

const Catalog* ModelExport::reference_weights() const {
  return reference_weights_ ? &reference_weights_->catalog() : nullptr;
}

std::set<std::string> ModelExport::may_lack() const {
  std::set<std::string> names(report_.tied.begin(), report_.tied.end());
  if (config_.ties_embeddings) names.insert("lm_head.weight");
  return names;
}

void ModelExport::drop_tied(Reader& source, Selection& selection, const Catalog* reference) {
  std::vector<std::size_t> dropped;
  std::vector<TiedPair> pairs = find_tied(selection.tensors);
  if (reference != nullptr) add_repeated(source.catalog(), selection, *reference, pairs);
  EqualTensors tensors(source, options_.max_memory_bytes);
  for (const TiedPair& pair : pairs) {
    const SelectedTensor &repeated = selection.tensors[pair.repeated], &original = selection.tensors[pair.original];
    if (contains(dropped, pair.repeated)) continue;
    const bool is_once =
        reference != nullptr && !has_tensor(*reference, repeated.name) && has_tensor(*reference, original.name);
    if (!config_.ties_embeddings && !is_once) continue;
    if (pair.is_guess && !tensors.may_be_equal(repeated, original)) continue;
    if (tensors.are_equal(repeated, original)) {
      report_.tied.emplace_back(repeated.name);
      dropped.push_back(pair.repeated);
    } else if (config_.ties_embeddings && !pair.is_guess) {
      throw Error(ErrorCode::kCorruption, fmt::format("'{}' and '{}' differ", repeated.name, original.name))
          .of_tensor(repeated.name)
          .because("config.json ties them (tie_word_embeddings), so loaders would use one for both")
          .hint("if the head was trained separately, set tie_word_embeddings to false in config.json");
    }
  }
  std::ranges::sort(dropped, std::greater());
  for (const std::size_t each : dropped) {
    selection.tensors.erase(selection.tensors.begin() + static_cast<std::ptrdiff_t>(each));
  }
}

/// A rule of `cast` takes precedence over `dtype`.
void ModelExport::change_dtypes(const Catalog& source, Selection& selection) {
  const bool is_auto = options_.dtype == kAutoDtypes;
  if (options_.dtype == kKeepDtypes) return;
  const std::optional<DType> wanted = dtype_of_name(is_auto ? config_.dtype : options_.dtype);
  if (!wanted) {
    Error error(ErrorCode::kInvalidArgument, "cannot find the model's dtype: no config.json states one");
    if (reference_.empty()) throw Error(error.suggest(Remedy::kNameReference));
    throw Error(error.in_file(join_path(reference_, kConfigName)).hint("name the dtype, such as bfloat16"));
  }
  const std::vector<bool> decided = decided_by_rules(options_.cast, source, selection.tensors);
  const QuantizedPart quantized = find_quantized(source, facts_);
  std::vector<DType> dtypes;
  if (is_auto) dtypes = auto_dtypes(selection.tensors, source, quantized, reference_weights(), *wanted);
  for (std::size_t i = 0; i < decided.size(); ++i) {
    SelectedTensor& each = selection.tensors[i];
    if (!decided[i] && is_float(each.dtype)) each.dtype = is_auto ? dtypes[i] : *wanted;
  }
  if (is_auto) report_.left_by_auto = left_by_auto(selection, quantized, *wanted, decided);
}

Error ModelExport::mismatch(const ReferenceDifference& difference) const {
  return Error(
             ErrorCode::kCorruption,
             fmt::format(
                 "the tensors do not match the reference '{}': {} missing, {} unexpected, {} with a different shape",
                 report_.reference, difference.missing.size(), difference.unexpected.size(), difference.shapes.size()))
      .in_file(report_.reference)
      .because(first_names(lines_of(difference)));
}

std::unique_ptr<Writer> ModelExport::add_files(std::unique_ptr<Writer> writer, LocalDisk* reflink_disk) const {
  return carried_.files.empty() ? std::move(writer) : with_added_files(std::move(writer), carried_.files, reflink_disk);
}

LeftBehind ModelExport::left_behind(const Catalog& source) const {
  const std::string& folder = report_.reference;
  LeftBehind left{.weights = taken_.other_weights, .others = {}};
  std::erase_if(left.weights, [&](const std::string& name) {  // The reader has named some; an index lists others.
    return std::ranges::any_of(source.warnings, [&](const std::string& text) { return mentions(text, name); }) ||
           contains(source.files, name, &File::path);
  });
  std::set<std::string> folders;
  if (!taken_.place.empty() && holds_files_of(store_, taken_.place, source)) folders.insert(taken_.place);
  const bool holds_source = !folder.empty() && !taken_.place.empty() && !name_towards(folder, taken_.place).empty();
  if (holds_source) folders.insert(folder);
  for (const std::string& each : folders) {
    std::set<std::string, std::less<>> known{"shardctl.manifest.json"};
    for (const std::string& path : carried_.paths) known.insert(name_towards(each, path));
    for (const std::string& path : taken_.paths) known.insert(name_towards(each, path));
    if (each == taken_.place) {
      for (const File& file : source.files) known.insert(first_component(file.path));
      known.insert(taken_.other_weights.begin(), taken_.other_weights.end());
    }
    std::vector<std::string> others = other_names(store_, each, known);
    std::erase_if(others, [&](const std::string& name) { return describes_folder(source, name); });
    if (!others.empty()) left.others.push_back(std::move(others));
  }
  return left;
}

}  // namespace shard

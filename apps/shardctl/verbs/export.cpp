#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "apps/shardctl/render/export_report.h"
#include "apps/shardctl/request/command_text.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/map_choice.h"
#include "apps/shardctl/source/model_folder.h"
#include "apps/shardctl/source/object_check.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/source/taken_source.h"
#include "apps/shardctl/target/carried_files.h"
#include "apps/shardctl/verbs/copy.h"
#include "apps/shardctl/verbs/verbs.h"
#include "formats/parts/hf_index/folder_names.h"
#include "formats/parts/quantization/config.h"
#include "formats/registry.h"
#include "formats/safetensors/format.h"
#include "libshard/catalog/casts.h"
#include "libshard/catalog/glob.h"
#include "libshard/compare/equal_tensors.h"
#include "libshard/core/error.h"
#include "libshard/core/first_names.h"
#include "libshard/core/hash_table.h"
#include "libshard/export/adapter.h"
#include "libshard/export/added_files.h"
#include "libshard/export/auto_dtypes.h"
#include "libshard/export/model_part.h"
#include "libshard/export/model_reader.h"
#include "libshard/export/reference_check.h"
#include "libshard/export/tied_weights.h"
#include "libshard/io/paths.h"
#include "libshard/map/undo.h"

namespace shard::app {
namespace {

constexpr std::string_view kKeep = "keep", kAuto = "auto", kOlderNames = "hf-v5",
                           kMappedStates = "optimizer.state.";  ///< What maps call moments and masters.
constexpr std::size_t kShownRenames = 16, kMostRepeated = 8;
constexpr const char *kModelStem = "diffusion_pytorch_model", *kAdapterStem = "adapter_model";

/// Whether a catalog, which is sorted by name, has a tensor.
bool has_tensor(const Catalog& catalog, std::string_view name) {
  return std::ranges::binary_search(catalog.tensors, name, {}, &Tensor::name);
}

/// One export: what is found out on the way from the command line to the output.
class Export {
 public:
  Export(Session& session, const Request& options) : session_(session), options_(options) {}

  int run();

 private:
  void find_source();
  void find_reference();
  void say_what_was_found() const;
  OpenSource open(const Session& session, const Request& options, Log& log);
  std::function<bool(std::string_view)> chosen_names() const;
  ModelPart find_part(const Catalog& catalog) const;
  void note_part(const Catalog& catalog, const ModelPart& part);
  void choose_files(const ModelPart& part);
  std::vector<std::string> warnings_of(const Catalog& catalog, const ModelPart& part) const;
  void adjust(OpenSource& source, Selection& selection);
  ModelHints hints() const;
  void drop_tied(OpenSource& source, Selection& selection, const Catalog* reference);
  void change_dtypes(const Catalog& source, Selection& selection);
  std::unique_ptr<Reader> open_reference() const;
  void compare(const OpenSource& source, const Selection& selection, const Catalog& reference);
  bool fits_by_names(const OpenSource& source, const Catalog& reference, const std::set<std::string>& may_lack) const;
  std::string remedy_for(const ReferenceDifference& difference, bool fits_by_map) const;
  [[noreturn]] void refuse(const ReferenceDifference& difference, bool fits_by_map);
  std::unique_ptr<Writer> add_files(std::unique_ptr<Writer> writer) const;

  Session& session_;
  Request options_;  ///< `source` is the checkpoint that was chosen; renaming that export does itself is removed.
  TakenSource taken_;
  FilesFolder folder_, adapter_folder_;  ///< Where a model's files come from, and an adapter's.
  bool has_own_reference_ = false;       ///< Neither is from --hf-ref.
  ObjectFaults faults_;                  ///< Not asked: objects are dropped, whatever they are.
  ModelConfig config_;
  QuantizationFacts facts_;            ///< From the files of the reference.
  std::unique_ptr<Reader> reference_;  ///< Of the reference's weights; null where there are none to compare with.
  bool is_adapter_ = false;
  ExportReport report_;
  std::vector<std::string> beside_;  ///< Files that decide what is written and are in neither SRC nor --hf-ref.
  CarriedFiles carried_;
};

int Export::run() {
  on_all_ranks(session_, "find", [this] {
    find_source();
    find_reference();
  });
  say_what_was_found();
  CopyVerb verb;
  verb.open = [this](const Session& session, const Request& options, Log& log) { return open(session, options, log); };
  verb.adjust = [this](OpenSource& source, Selection& selection) { adjust(source, selection); };
  verb.wrap_writer = [this](std::unique_ptr<Writer> writer) { return add_files(std::move(writer)); };
  verb.exported = &report_;
  verb.beside = beside_;
  return run_copy_verb(session_, options_, verb);
}

void Export::find_source() {
  taken_ = take_model(session_, options_.source);
  report_.found = taken_.label;
  const std::string named = options_.source.paths.front();
  const bool is_loaded = !taken_.place.empty() && taken_.paths.front() != taken_.place;
  options_.source.paths = taken_.paths;
  const SourceStore& store = source_store(session_);
  if (is_loaded) beside_ = reference_files(store, taken_.place);
  const std::string& start = taken_.place.empty() ? taken_.paths.front() : taken_.place;
  adapter_folder_ = find_model_folder(store, start, named, kAdapterConfigName);
  if (const std::string& stated = options_.source.numbers.hf_ref; !stated.empty()) {
    folder_ = {stated};
    if (store.status(join_path(stated, kAdapterConfigName)).kind == FileKind::kFile) adapter_folder_ = folder_;
  } else {
    has_own_reference_ = true;
    folder_ = find_model_folder(store, start, named);
  }
}

void Export::find_reference() {
  if (folder_.path.empty()) return;
  const SourceStore& store = source_store(session_);
  const bool is_adapters = folder_.path == adapter_folder_.path &&
                           store.status(join_path(folder_.path, kConfigName)).kind == FileKind::kAbsent;
  if (is_adapters) {
    options_.source.numbers.hf_ref.clear();  // It has no numbers of a model.
    return;
  }
  config_ = read_model_config(store, folder_.path);
  facts_ = read_quantization(store, folder_.path);
  options_.source.numbers.hf_ref = folder_.path;
  for (const std::string& name : model_files(store, folder_, FilesOf::kModel, has_own_reference_).names) {
    if (name.find('/') != std::string::npos) beside_.push_back(join_path(folder_.path, name));
  }
}

void Export::say_what_was_found() const {
  if (!is_rank_zero(session_)) return;
  if (taken_.is_found) note(session_, fmt::format("export: took {}", taken_.label));
  const std::string& dtype = options_.exporting.dtype;
  const bool is_named = dtype != kKeep && dtype != kAuto;
  if (is_named && !config_.dtype.empty() && config_.dtype != dtype) {
    warn(session_,
         fmt::format("config.json is copied unchanged and says {}; loaders that follow it will convert the {} weights",
                     config_.dtype, dtype));
  }
}

OpenSource Export::open(const Session& session, const Request& options, Log& log) {
  if (!options.exporting.no_check) reference_ = open_reference();
  OpenSource source =
      open_source(session, options.source, log, {.keeps_map = true, .findings = &faults_});  // Its names lack wrappers.
  source.label = taken_.label;
  const Catalog& catalog = source.catalog();
  ModelPart part = find_part(catalog);
  choose_files(part);
  note_part(catalog, part);
  part.warnings = warnings_of(catalog, part);
  source.reader = model_reader(std::move(source.reader), part);
  if (!options.source.map.empty()) undo_map(session, options.source, nullptr, source, log);
  return source;
}

/// A line for each of several models in one source, and one for all of them as one model.
[[noreturn]] void refuse_choices(const Request& options, const std::string& label,
                                 const std::vector<std::string>& choices) {
  std::vector<std::string> lines;
  for (const std::string& each : choices) {
    lines.push_back(repeat_command(options.arguments, "--include " + shell_quoted(glob_of_name(each) + ".**")));
  }
  throw usage(fmt::format("cannot tell which model of '{}' to export", label))
      .in_file(label)
      .because(fmt::format("it holds several: {}", fmt::join(choices, ", ")))
      .hint(fmt::format("{}; --include '**' exports all of them as one model", fmt::join(lines, ", or ")));
}

/// A line for each of several adapters, which leaves the others out.
[[noreturn]] void refuse_adapters(const Request& options, const std::string& label,
                                  const std::vector<std::string>& adapters) {
  std::vector<std::string> lines;
  for (const std::string& taken : adapters) {
    std::string words;
    for (const std::string& other : adapters) {
      if (other == taken) continue;
      words +=
          fmt::format("{}--exclude {}", words.empty() ? "" : " ", shell_quoted("**." + glob_of_name(other) + "**"));
    }
    lines.push_back(repeat_command(options.arguments, words));
  }
  throw usage(fmt::format("cannot tell which adapter of '{}' to export", label))
      .in_file(label)
      .because(fmt::format("it holds several: {}", fmt::join(adapters, ", ")))
      .hint(fmt::format("{}", fmt::join(lines, ", or ")));
}

/// The line that exports the adapter of a source that holds its base model too.
std::string adapter_line(const Request& options, const Catalog& catalog) {
  const auto is_saved = [](const Tensor& each) {
    return each.name.find(".modules_to_save.") != std::string_view::npos;
  };
  std::string words = "--include '**lora_**'";
  if (std::ranges::any_of(catalog.tensors, is_saved)) words += " --include '**.modules_to_save.**'";
  return repeat_command(options.arguments, words);
}

/// Whether --include and --exclude choose a name of the source.
std::function<bool(std::string_view)> Export::chosen_names() const {
  const SelectionOptions& names = options_.exporting.names;
  return [include = std::make_shared<GlobSet>(names.include), exclude = std::make_shared<GlobSet>(names.exclude)](
             std::string_view name) { return (include->empty() || include->matches(name)) && !exclude->matches(name); };
}

ModelPart Export::find_part(const Catalog& catalog) const {
  check_include({&catalog}, options_.exporting.names);
  try {
    ModelPart part = find_model(catalog, chosen_names(), hints());
    if (!part.choices.empty()) refuse_choices(options_, taken_.label, part.choices);
    if (part.adapters.size() > 1) refuse_adapters(options_, taken_.label, part.adapters);
    return part;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported || !is_lora(error.tensor())) throw;
    throw Error(error).hint(
        fmt::format("merge the adapter first, as peft's merge_and_unload() does, or export the adapter alone: {}",
                    adapter_line(options_, catalog)));
  }
}

/// Decides what is copied beside the weights, and what these are called.
void Export::choose_files(const ModelPart& part) {
  is_adapter_ = part.is_adapter;
  carried_ = carried_files(session_, is_adapter_ ? adapter_folder_ : folder_,
                           is_adapter_ ? FilesOf::kAdapter : FilesOf::kModel, has_own_reference_);
  if (is_adapter_) report_.stem = kAdapterStem;
  if (!is_adapter_ && config_.is_diffusers) report_.stem = kModelStem;
  LayoutRequest& layout = options_.target.layout;
  if (is_adapter_ && !layout.cuts_files()) layout.shards = 1;  // PEFT opens one file only.
  if (!carried_.code.empty() && is_rank_zero(session_)) {
    FirstNames few;
    for (const std::string& name : carried_.code) few.add(name);
    note(session_, fmt::format("export: copied code: {}", few.text()));
  }
}

void Export::note_part(const Catalog& catalog, const ModelPart& part) {
  report_.container = part.container;
  report_.reference = is_adapter_ ? adapter_folder_.path : folder_.path;
  report_.renamed = part.renamed;
  report_.other_tensors = part.other_tensors;
  report_.objects = part.other_objects + std::ssize(part.objects);
  for (const AddedFile& file : carried_.files) report_.copied.push_back(file.path);
  if (report_.other_tensors + report_.objects > 0 && is_rank_zero(session_)) {
    note(session_, fmt::format("export: left out {} of other states, {}", plural(report_.other_tensors, "tensor"),
                               plural(report_.objects, "object")));
  }
  report_.read_paths = carried_.paths;
  if (!taken_.place.empty()) {
    for (const File& file : catalog.files) report_.read_paths.push_back(join_path(taken_.place, file.path));
  }
  for (const ModelTensor& each : part.tensors) {
    const std::string_view name = catalog.tensors[each.source].name;
    if (name == each.name) continue;
    if (!session_.common.json && report_.renames.size() == kShownRenames) break;
    report_.renames.emplace_back(name, each.name);
  }
}

std::vector<std::string> Export::warnings_of(const Catalog& catalog, const ModelPart& part) const {
  std::vector<std::string> warnings;
  const auto takes_part = chosen_names();
  for (const std::string& warning : catalog.warnings) {
    if (!hf_index::is_others_warning(warning)) warnings.push_back(warning);
  }
  if (is_adapter_ && adapter_folder_.path.empty()) {
    warnings.emplace_back(
        "there is no adapter_config.json beside the source, and PEFT needs one: copy that of the training into the "
        "output, or name its folder with --hf-ref DIR");
  }
  if (!is_adapter_ && folder_.path.empty()) {
    warnings.emplace_back(
        "found no config.json near the source, so the output has no config and no tokenizer; pass their folder with "
        "--hf-ref DIR");
  }
  const FirstNames dropped = objects_with_tensors(catalog, [&](std::uint32_t object) {
    return takes_part(catalog.objects[object].name) && !std::ranges::binary_search(part.objects, object);
  });
  if (dropped.count() > 0) warnings.push_back(dropped_tensors_text(dropped));
  for (const BesideModel& each : part.beside) {
    const bool is_container = each.tensors != 1 || catalog.find(each.container) == nullptr;
    const std::string glob = glob_of_name(each.container) + (is_container ? ".**" : "");
    warnings.push_back(fmt::format("'{}' is left out: {} beside '{}'; to export it instead: {}", each.container,
                                   plural(each.tensors, "tensor"), part.container,
                                   repeat_command(options_.arguments, "--include " + shell_quoted(glob))));
  }
  for (const auto& more : {carried_.warnings, left_behind(session_, taken_, catalog, carried_, report_.reference)}) {
    warnings.insert(warnings.end(), more.begin(), more.end());
  }
  return warnings;
}

void Export::adjust(OpenSource& source, Selection& selection) {
  report_.other_tensors += std::ssize(selection.tensors);
  std::erase_if(selection.tensors, [](const SelectedTensor& each) { return each.name.starts_with(kMappedStates); });
  report_.other_tensors -= std::ssize(selection.tensors);
  if (selection.tensors.empty()) {
    throw Error(ErrorCode::kCorruption, fmt::format("'{}' has no model tensors", taken_.label))
        .in_file(taken_.paths.front());
  }
  const Catalog* const reference = reference_ && !is_adapter_ ? &reference_->catalog() : nullptr;
  if (!is_adapter_) drop_tied(source, selection, reference);
  change_dtypes(source.catalog(), selection);
  if (reference != nullptr) compare(source, selection, *reference);
}

/// Of the model's own names: a map's are others.
ModelHints Export::hints() const {
  const bool takes_several = !options_.exporting.names.include.empty();
  if (!options_.source.map.empty()) return {.takes_several = takes_several};
  ModelHints hints{.type = config_.type, .takes_several = takes_several};
  if (reference_) hints.has = [this](std::string_view name) { return has_tensor(reference_->catalog(), name); };
  return hints;
}

/// Adds the matrices that the reference lacks with those of its own that they may repeat.
void add_repeated(const Catalog& source, const Selection& selection, const Catalog& reference,
                  std::vector<TiedPair>& pairs) {
  std::vector<std::size_t> unknown, known;
  for (std::size_t i = 0; i < selection.tensors.size(); ++i) {
    const SelectedTensor& each = selection.tensors[i];
    if (source.tensors[each.source].shape.size() < 2) continue;
    (has_tensor(reference, each.name) ? known : unknown).push_back(i);
  }
  if (unknown.size() > kMostRepeated) return;  // Another model's names.
  for (const std::size_t repeated : unknown) {
    const Tensor& tensor = source.tensors[selection.tensors[repeated].source];
    for (const std::size_t original : known) {
      const Tensor& other = source.tensors[selection.tensors[original].source];
      if (other.shape == tensor.shape && other.dtype == tensor.dtype) pairs.push_back({repeated, original, true});
    }
  }
}

/// Warnings about the tensors that --dtype auto leaves as they are.
std::vector<std::string> left_by_auto(const Selection& selection, const QuantizedPart& quantized, DType wanted,
                                      const std::vector<bool>& decided) {
  HashSet<std::uint32_t> modules;
  FirstNames names, lone, wide;
  std::int64_t tensors = 0;
  for (std::size_t i = 0; i < selection.tensors.size(); ++i) {
    if (decided[i]) continue;
    const SelectedTensor& each = selection.tensors[i];
    const std::uint32_t module = quantized.module_of[each.source];
    if (module != kNoIndex) {
      ++tensors;
      if (modules.insert(module)) names.add(quantized.modules[module].name);
    } else if (is_float(each.dtype) && !is_plain_float(each.dtype)) {
      lone.add(each.name);
    } else if (is_plain_float(each.dtype) && each.dtype != wanted) {
      wide.add(each.name);
    }
  }
  const auto counted = [](const FirstNames& few) { return static_cast<std::int64_t>(few.count()); };
  std::vector<std::string> warnings;
  if (names.count() > 0) {
    warnings.push_back(fmt::format("--dtype auto leaves {} of {} as they are: {}", plural(tensors, "tensor"),
                                   plural(counted(names), "quantized module"), names.text()));
  }
  if (lone.count() > 0) {
    warnings.push_back(fmt::format("--dtype auto leaves {} of {} as they are: {}", plural(counted(lone), "tensor"),
                                   "dtypes that need scales", lone.text()));
  }
  if (wide.count() > 0) {
    warnings.push_back(fmt::format("{} a wider dtype than {}, as the model does: {}",
                                   plural(counted(wide), "tensor keeps", "tensors keep"), dtype_name(wanted),
                                   wide.text()));
  }
  return warnings;
}

void Export::drop_tied(OpenSource& source, Selection& selection, const Catalog* reference) {
  std::vector<std::size_t> dropped;
  std::vector<TiedPair> pairs = find_tied(selection.tensors);
  if (reference != nullptr) add_repeated(source.catalog(), selection, *reference, pairs);
  EqualTensors tensors(*source.reader, reading_memory_bytes(session_));
  for (const TiedPair& pair : pairs) {
    const SelectedTensor &repeated = selection.tensors[pair.repeated], &original = selection.tensors[pair.original];
    if (std::ranges::find(dropped, pair.repeated) != dropped.end()) continue;
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

/// Sets the dtypes of --dtype. A rule of --cast goes before it.
void Export::change_dtypes(const Catalog& source, Selection& selection) {
  const std::string& asked = options_.exporting.dtype;
  if (asked == kKeep) return;
  const std::optional<DType> wanted = dtype_of_name(asked == kAuto ? config_.dtype : asked);
  if (!wanted) {
    throw usage("--dtype auto needs a config.json with a dtype")
        .in_file(folder_.path.empty() ? "" : join_path(folder_.path, "config.json"))
        .hint("pass the dtype itself, or the config's folder with --hf-ref DIR");
  }
  const std::vector<bool> decided = decided_by_rules(options_.selection.cast, source, selection.tensors);
  const QuantizedPart quantized = find_quantized(source, facts_);
  const Catalog* const reference = reference_ ? &reference_->catalog() : nullptr;
  std::vector<DType> dtypes;
  if (asked == kAuto) dtypes = auto_dtypes(selection.tensors, source, quantized, reference, *wanted);
  for (std::size_t i = 0; i < decided.size(); ++i) {
    SelectedTensor& each = selection.tensors[i];
    if (!decided[i] && is_float(each.dtype)) each.dtype = asked == kAuto ? dtypes[i] : *wanted;
  }
  if (asked == kAuto) report_.warnings = left_by_auto(selection, quantized, *wanted, decided);
}

/// What the weights of the reference say of themselves; null where there are none, or they are the source's.
std::unique_ptr<Reader> Export::open_reference() const {
  const Source reference{&source_store(session_), {folder_.path}};
  const bool is_source = taken_.place == folder_.path || taken_.paths.front() == folder_.path;
  if (folder_.path.empty() || is_source || !kSafetensorsFormat.detect(reference)) return nullptr;
  return kSafetensorsFormat.open(reference, {});
}

void Export::compare(const OpenSource& source, const Selection& selection, const Catalog& reference) {
  std::set<std::string> may_lack(report_.tied.begin(), report_.tied.end());
  if (config_.ties_embeddings) may_lack.insert("lm_head.weight");
  const ReferenceDifference difference =
      compare_with_reference(selection.tensors, source.catalog(), reference, may_lack);
  report_.is_checked = true;
  if (difference.empty()) return;
  const bool fits_by_map = options_.source.map.empty() && fits_by_names(source, reference, may_lack);
  refuse(difference, fits_by_map);
}

/// Whether the names of transformers 4 are the reference's.
bool Export::fits_by_names(const OpenSource& source, const Catalog& reference,
                           const std::set<std::string>& may_lack) const try {
  const ModelMap map =
      choose_map(session_, std::string(kOlderNames), options_.source.numbers, source, MapUse::kUndo, 1);
  const Catalog logical = UndoneMap(source.catalog(), map).make_catalog(source.catalog());
  std::vector<SelectedTensor> tensors;
  for (std::uint32_t i = 0; i < logical.tensors.size(); ++i) {
    const Tensor& tensor = logical.tensors[i];
    if (!may_lack.contains(std::string(tensor.name))) tensors.push_back({i, tensor.dtype, tensor.name, {}});
  }
  const ReferenceDifference left = compare_with_reference(tensors, logical, reference, may_lack);
  return left.missing.empty() && left.shapes.empty() && left.unexpected.size() <= 1;  // A tied head.
} catch (const Error&) {
  return false;  // The map is not this model's: there is nothing to hint at.
}

std::string Export::remedy_for(const ReferenceDifference& difference, bool fits_by_map) const {
  const PrefixGuess guess = guess_prefix(difference);
  if (!guess.strip.empty()) return repeat_command(options_.arguments, "--strip-prefix " + guess.strip);
  if (!guess.add.empty()) return repeat_command(options_.arguments, "--add-prefix " + guess.add);
  if (fits_by_map) return repeat_command(options_.arguments, fmt::format("--map {}", kOlderNames));
  return "see all of them with --json, or export anyway with --no-check";
}

void Export::refuse(const ReferenceDifference& difference, bool fits_by_map) {
  session_.error_details = lines_of(difference);
  FirstNames few;
  for (const std::string& line : session_.error_details) few.add(line);
  throw Error(
      ErrorCode::kCorruption,
      fmt::format("the tensors do not match the reference '{}': {} missing, {} unexpected, {} with a different shape",
                  report_.reference, difference.missing.size(), difference.unexpected.size(), difference.shapes.size()))
      .in_file(report_.reference)
      .because(few.text())
      .hint(remedy_for(difference, fits_by_map));
}

std::unique_ptr<Writer> Export::add_files(std::unique_ptr<Writer> writer) const {
  if (carried_.files.empty()) return writer;
  LocalDisk* const cloner = session_.parts == nullptr ? &session_.fs : nullptr;
  return with_added_files(std::move(writer), carried_.files, cloner);
}

}  // namespace

void check_export(const Session&, Request& options) {
  const std::string& dtype = options.exporting.dtype;
  if (dtype != kKeep && dtype != kAuto && !dtype_of_name(dtype)) {
    throw usage(fmt::format("--dtype {}: not a dtype", dtype)).hint("give a dtype such as bfloat16, or auto, or keep");
  }
  if (!format_of_suffix(options.target.path).empty()) {
    throw usage("export writes a folder")
        .because(fmt::format("'{}' has the suffix of a single file", options.target.path));
  }
  const std::string& to = options.target.to;
  if (!to.empty() && to != kSafetensorsFormat.traits.name && to != "torch") {
    throw usage(fmt::format("export does not write {}", to)).hint("drop --to, or write safetensors or torch");
  }
  options.selection.keep_objects = false;
  options.exporting.names.include = std::exchange(options.selection.include, {});
  options.exporting.names.exclude = std::exchange(options.selection.exclude, {});
}

int run_export(Session& session, const Request& options) { return Export(session, options).run(); }

}  // namespace shard::app

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "apps/shardctl/command_line.h"
#include "apps/shardctl/copy_verb.h"
#include "apps/shardctl/equal_tensors.h"
#include "apps/shardctl/export_report.h"
#include "apps/shardctl/export_source.h"
#include "apps/shardctl/map_choice.h"
#include "apps/shardctl/model_folder.h"
#include "apps/shardctl/object_check.h"
#include "apps/shardctl/ranks.h"
#include "apps/shardctl/source.h"
#include "apps/shardctl/verbs.h"
#include "formats/parts/hf_index/folder_names.h"
#include "formats/registry.h"
#include "formats/safetensors/format.h"
#include "libshard/catalog/glob.h"
#include "libshard/core/error.h"
#include "libshard/core/first_names.h"
#include "libshard/export/added_files.h"
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

/// Whether a catalog, which is sorted by name, has a tensor.
bool has_tensor(const Catalog& catalog, std::string_view name) {
  return std::ranges::binary_search(catalog.tensors, name, {}, &Tensor::name);
}

/// One export: what is found out on the way from the command line to the output.
class Export {
 public:
  Export(Session& session, const Options& options) : session_(session), options_(options) {}

  int run();

 private:
  void find_source();
  void find_reference();
  OpenSource open(const Session& session, const Options& options, Log& log);
  void adjust(OpenSource& source, Selection& selection);
  ModelHints hints() const;
  void drop_tied(OpenSource& source, Selection& selection, const Catalog* reference);
  void change_dtypes(Selection& selection) const;
  std::unique_ptr<Reader> open_reference() const;
  void compare(const OpenSource& source, const Selection& selection, const Catalog& reference);
  bool fits_by_names(const OpenSource& source, const Catalog& reference, const std::set<std::string>& may_lack) const;
  std::string remedy_for(const ReferenceDifference& difference, bool fits_by_map) const;
  [[noreturn]] void refuse(const ReferenceDifference& difference, bool fits_by_map);
  std::unique_ptr<Writer> add_files(std::unique_ptr<Writer> writer) const;

  Session& session_;
  Options options_;  ///< The source is the one that was taken; what export does to names itself is taken out.
  TakenSource taken_;
  ObjectFaults faults_;  ///< Not asked: objects are dropped, whatever they are.
  ModelConfig config_;
  std::unique_ptr<Reader> reference_;  ///< Of the reference's weights; null where there are none to compare with.
  ExportReport report_;
  std::vector<AddedFile> files_;
};

int Export::run() {
  on_all_ranks(session_, "find", [this] {
    find_source();
    find_reference();
  });
  if (taken_.is_found && is_rank_zero(session_)) note(session_, fmt::format("export: took {}", taken_.label));
  if (report_.reference.empty() && is_rank_zero(session_)) {
    warn(session_,
         "no config.json lies beside the source, so the output lacks config and tokenizer; name their folder with "
         "--hf-ref DIR");
  }
  const std::string& dtype = options_.exporting.dtype;
  const bool is_named = dtype != kKeep && dtype != kAuto;
  if (is_named && !config_.dtype.empty() && config_.dtype != dtype && is_rank_zero(session_)) {
    warn(session_,
         fmt::format("config.json is copied as it is and says {}: loaders that follow it convert the {} weights",
                     config_.dtype, dtype));
  }
  CopyVerb verb;
  verb.open = [this](const Session& session, const Options& options, Log& log) { return open(session, options, log); };
  verb.adjust = [this](OpenSource& source, Selection& selection) { adjust(source, selection); };
  verb.wrap_writer = [this](std::unique_ptr<Writer> writer) { return add_files(std::move(writer)); };
  verb.exported = &report_;
  return run_copy_verb(session_, options_, verb);
}

void Export::find_source() {
  const std::string named = options_.source.paths.front();
  taken_ = take_source(session_, options_.source);
  options_.source.paths = taken_.paths;
  report_.found = taken_.label;
  report_.reference = options_.source.numbers.hf_ref;
  if (report_.reference.empty()) {
    report_.reference = find_model_folder(source_store(session_), taken_.paths.front(), named);
  }
}

void Export::find_reference() {
  if (report_.reference.empty()) return;
  const SourceStore& store = source_store(session_);
  config_ = read_model_config(store, report_.reference);
  report_.copied = model_files(store, report_.reference);
  for (const std::string& name : report_.copied) {
    std::shared_ptr<const RandomReader> file = store.open_below(report_.reference, name);
    // What other ranks hold can be read during this step alone.
    files_.push_back({name, session_.parts == nullptr ? std::move(file) : held_in_memory(*file)});
  }
  options_.source.numbers.hf_ref = report_.reference;
}

OpenSource Export::open(const Session& session, const Options& options, Log& log) {
  if (!options_.exporting.no_check) reference_ = open_reference();
  OpenSource source =
      open_source(session, options.source, log, {.keeps_map = true, .findings = &faults_});  // Its names lack wrappers.
  source.label = taken_.label;
  const Catalog& catalog = source.catalog();
  check_include({&catalog}, options.exporting.names);
  const GlobSet include(options.exporting.names.include), exclude(options.exporting.names.exclude);
  const bool takes_all = options.exporting.names.include.empty();
  ModelPart part = find_model(
      catalog, [&](std::string_view name) { return (takes_all || include.matches(name)) && !exclude.matches(name); },
      hints());
  for (const std::string& warning : catalog.warnings) {
    if (!hf_index::is_others_warning(warning)) part.warnings.push_back(warning);
  }
  const FirstNames dropped = objects_with_tensors(catalog, [&](std::uint32_t object) {
    const std::string_view name = catalog.objects[object].name;
    const bool is_chosen = (takes_all || include.matches(name)) && !exclude.matches(name);
    return is_chosen && !std::ranges::binary_search(part.objects, object);
  });
  if (dropped.count() > 0) part.warnings.push_back(dropped_tensors_text(dropped));
  report_.container = part.container;
  report_.renamed = part.renamed;
  report_.other_tensors = part.other_tensors;
  report_.objects = part.other_objects + std::ssize(part.objects);
  for (const ModelTensor& each : part.tensors) {
    const std::string_view name = catalog.tensors[each.source].name;
    if (name == each.name) continue;
    if (!session.common.json && report_.renames.size() == kShownRenames) break;
    report_.renames.emplace_back(name, each.name);
  }
  source.reader = model_reader(std::move(source.reader), part);
  if (!options.source.map.empty()) undo_map(session, options.source, nullptr, source, log);
  return source;
}

void Export::adjust(OpenSource& source, Selection& selection) {
  report_.other_tensors += std::ssize(selection.tensors);
  std::erase_if(selection.tensors, [](const SelectedTensor& each) { return each.name.starts_with(kMappedStates); });
  report_.other_tensors -= std::ssize(selection.tensors);
  if (selection.tensors.empty()) {
    throw Error(ErrorCode::kCorruption, fmt::format("'{}' holds no tensor of a model", taken_.label))
        .in_file(taken_.paths.front());
  }
  const Catalog* const reference = reference_ ? &reference_->catalog() : nullptr;
  drop_tied(source, selection, reference);
  change_dtypes(selection);
  if (reference != nullptr) compare(source, selection, *reference);
}

/// Of the model's own names: a map's are others.
ModelHints Export::hints() const {
  if (!options_.source.map.empty()) return {};
  ModelHints hints{.type = config_.type};
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
          .because("config.json ties them (tie_word_embeddings), so a model would load one for both")
          .hint("set tie_word_embeddings to false in config.json if the head was trained by itself");
    }
  }
  std::ranges::sort(dropped, std::greater());
  for (const std::size_t each : dropped) {
    selection.tensors.erase(selection.tensors.begin() + static_cast<std::ptrdiff_t>(each));
  }
}

/// Quantized weights mean nothing without their scales.
bool is_trained_as(DType dtype) {
  constexpr std::array kTrained{DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64};
  return std::ranges::find(kTrained, dtype) != kTrained.end();
}

void Export::change_dtypes(Selection& selection) const {
  std::string name = options_.exporting.dtype;
  if (name == kKeep) return;
  if (name == kAuto) name = config_.dtype;
  const std::optional<DType> wanted = dtype_of_name(name);
  if (!wanted) {
    throw usage("--dtype auto needs a config.json that says the dtype")
        .in_file(report_.reference.empty() ? "" : join_path(report_.reference, "config.json"))
        .hint("name the dtype, or the folder of the config with --hf-ref DIR");
  }
  const auto is_packed = [](const SelectedTensor& each) { return is_float(each.dtype) && !is_trained_as(each.dtype); };
  const auto packed = std::ranges::find_if(selection.tensors, is_packed);
  if (packed != selection.tensors.end()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot convert quantized weights to {}", dtype_name(*wanted)))
        .of_tensor(packed->name)
        .because(
            fmt::format("it is {}, and its numbers need scales that other tensors hold", dtype_name(packed->dtype)))
        .hint("drop --dtype to keep the weights as they are");
  }
  for (SelectedTensor& each : selection.tensors) {
    if (is_trained_as(each.dtype)) each.dtype = *wanted;
  }
}

/// What the weights of the reference say of themselves; null where there are none, or they are the source's.
std::unique_ptr<Reader> Export::open_reference() const {
  const Source reference{&source_store(session_), {report_.reference}};
  const bool is_source = taken_.paths.size() == 1 && taken_.paths.front() == report_.reference;
  if (report_.reference.empty() || is_source || !kSafetensorsFormat.detect(reference)) return nullptr;
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
  return "list all with --json; add --no-check to export them all the same";
}

void Export::refuse(const ReferenceDifference& difference, bool fits_by_map) {
  session_.error_details = lines_of(difference);
  FirstNames few;
  for (const std::string& line : session_.error_details) few.add(line);
  throw Error(
      ErrorCode::kCorruption,
      fmt::format("the tensors are not those of the reference '{}': {} missing, {} unexpected, {} of another "
                  "shape",
                  report_.reference, difference.missing.size(), difference.unexpected.size(), difference.shapes.size()))
      .in_file(report_.reference)
      .because(few.text())
      .hint(remedy_for(difference, fits_by_map));
}

std::unique_ptr<Writer> Export::add_files(std::unique_ptr<Writer> writer) const {
  if (files_.empty()) return writer;
  LocalDisk* const cloner = session_.parts == nullptr ? &session_.fs : nullptr;
  return with_added_files(std::move(writer), files_, cloner);
}

}  // namespace

void check_export(const Session&, Options& options) {
  const std::string& dtype = options.exporting.dtype;
  if (dtype != kKeep && dtype != kAuto && !dtype_of_name(dtype)) {
    throw usage(fmt::format("--dtype {}: not a dtype", dtype)).hint("name one such as bfloat16, or auto, or keep");
  }
  if (!format_of_suffix(options.target.path).empty()) {
    throw usage("export writes a folder")
        .because(fmt::format("the suffix of '{}' means one file", options.target.path));
  }
  const std::string& to = options.target.to;
  if (!to.empty() && to != kSafetensorsFormat.traits.name && to != "torch") {
    throw usage(fmt::format("export does not write {}", to)).hint("drop --to, or write safetensors or torch");
  }
  options.selection.keep_objects = false;
  options.exporting.names.include = std::exchange(options.selection.include, {});
  options.exporting.names.exclude = std::exchange(options.selection.exclude, {});
}

int run_export(Session& session, const Options& options) { return Export(session, options).run(); }

}  // namespace shard::app

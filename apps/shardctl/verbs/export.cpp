#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/shardctl/render/copy.h"
#include "apps/shardctl/request/command_text.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/object_check.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/source/taken_source.h"
#include "apps/shardctl/verbs/copy.h"
#include "apps/shardctl/verbs/verbs.h"
#include "formats/export/model_export.h"
#include "formats/open/map_choice.h"
#include "formats/open/requested_adapters.h"
#include "formats/parts/hf_index/folder_names.h"
#include "formats/registry.h"
#include "libshard/catalog/selection/glob.h"
#include "libshard/catalog/targets/target.h"
#include "libshard/core/error.h"
#include "libshard/core/short_text.h"
#include "libshard/export/adapter.h"
#include "libshard/export/model_part.h"
#include "libshard/export/reference_check.h"
#include "libshard/map/documents/builtin_maps.h"
#include "libshard/map/passes/undo.h"

namespace shard::app {
namespace {

ExportOptions export_options(const Session& session, const CopyRequest& request) {
  ExportOptions result{
      .reference = request.read.numbers.hf_ref,
      .dtype = request.exporting.dtype,
      .cast = request.select.cast,
      .is_checked = !request.exporting.no_check,
      .names = request.exporting.names,
      .dequantized = request.read.dequantize,
      .is_mapped = !request.read.map.empty(),
      .holds_files = session.peer_store != nullptr,  // Files of other ranks can be read only during a step.
      .max_memory_bytes = reading_memory_bytes(session)};
  if (session.common.json) result.most_renames = std::numeric_limits<std::size_t>::max();
  return result;
}

/// One export from the command line to the output: prints the library's decisions.
class Export {
 public:
  Export(Session& session, const CopyRequest& request)
      : session_(session), request_(request), export_(source_store(session), export_options(session, request)) {}

  int run();

 private:
  void find_source();
  void say_what_was_found() const;
  OpenSource open(const Session& session, const CopyRequest& request, Log& log);
  ModelPart find_part(const Catalog& catalog);
  void say_what_is_taken() const;
  std::vector<std::string> warnings_of(const Catalog& catalog, const ModelPart& part) const;
  void adjust(OpenSource& source, Selection& selection);
  bool fits_by_map(const OpenSource& source, const std::string& name) const;
  std::vector<std::string_view> fitting_maps(const OpenSource& source) const;
  std::string exclusion_of(const OpenSource& source, const Selection& selection,
                           const std::vector<std::string>& names) const;
  void refuse_differing_ranks(const OpenSource& source, const Selection& selection) const;
  std::string remedy_for(const ReferenceDifference& difference, const std::vector<std::string_view>& maps,
                         const std::string& exclusion) const;

  Session& session_;
  CopyRequest request_;  ///< `read` is the chosen checkpoint; names that export itself renames are removed.
  ModelExport export_;
  ObjectFaults faults_;                         ///< Not used: export drops all objects.
  std::vector<std::string_view> source_names_;  ///< By tensor of the model: its name in the source.
};

int Export::run() {
  on_all_ranks(session_, "find", [this] { find_source(); });
  say_what_was_found();
  CopyVerb verb;
  verb.open = [this](const Session& session, const CopyRequest& request, Log& log) {
    return open(session, request, log);
  };
  verb.adjust = [this](OpenSource& source, Selection& selection) { adjust(source, selection); };
  verb.wrap_writer = [this](std::unique_ptr<Writer> writer) {
    return export_.add_files(std::move(writer), session_.peer_store == nullptr ? &session_.fs : nullptr);
  };
  verb.exported = &export_.report();
  verb.converts_all = request_.exporting.dtype != kKeepDtypes;
  verb.beside = export_.beside();
  return run_copy_verb(session_, request_, verb);
}

void Export::find_source() {
  const std::string named = request_.read.paths.front();
  export_.find_files(take_model(session_, request_.read), named);
  request_.read.paths = export_.source().paths;
  if (!export_.folder().path.empty()) request_.read.numbers.hf_ref = export_.reference();
}

void Export::say_what_was_found() const {
  if (!is_rank_zero(session_)) return;
  const TakenSource& taken = export_.source();
  if (taken.is_found) note(session_, fmt::format("export: took {}", taken.label));
  const std::string &dtype = request_.exporting.dtype, &config = export_.config().dtype;
  const bool is_named = dtype != kKeepDtypes && dtype != kAutoDtypes;
  if (is_named && !config.empty() && config != dtype) {
    warn(session_,
         fmt::format(
             "config.json is copied unchanged and contains {}; loaders that follow it will convert the {} weights",
             config, dtype));
  }
}

OpenSource Export::open(const Session& session, const CopyRequest& request, Log& log) {
  OpenSource source = open_source(session, request.read, log,
                                  {.keeps_map = true, .findings = &faults_});  // The map's names lack wrappers.
  source.label = export_.source().label;
  const Catalog& catalog = source.catalog();
  ModelPart part = find_part(catalog);
  export_.take(catalog, part);
  for (const ModelTensor& each : part.tensors) source_names_.push_back(catalog.tensors[each.source].name);
  LayoutRequest& layout = request_.write.layout;
  if (part.is_adapter && !layout.cuts_files()) layout.shards = 1;  // PEFT opens only one file.
  say_what_is_taken();
  part.warnings = warnings_of(catalog, part);
  source.reader = model_reader(std::move(source.reader), part);
  undo_map_and_merge(source_place(session), request.read,
                     {.on_computed = [&session](const auto& reader) { check_operands(session, reader); },
                      .on_step = [&log](const std::string& line) { log.info(line); },
                      .on_note = notes_of(session)},
                     source);
  return source;
}

/// A command for each of several models in one source, and one for all of them as a single model.
[[noreturn]] void refuse_choices(const std::vector<std::string>& arguments, const std::string& label,
                                 const std::vector<std::string>& choices) {
  std::vector<std::string> lines;
  for (const std::string& each : choices) {
    lines.push_back(repeat_command(arguments, "--include " + shell_quoted(glob_of_name(each) + ".**")));
  }
  throw usage(fmt::format("cannot choose which model of '{}' to export", label))
      .in_file(label)
      .because(fmt::format("it contains several: {}", fmt::join(choices, ", ")))
      .hint(fmt::format("{}; --include '**' exports all of them as one model", fmt::join(lines, ", or ")));
}

constexpr std::size_t kMostAdapterLines = 8;  ///< Each line excludes all other adapters.

/// A command for each of several adapters, which excludes the others. If there are many, one that shows the form.
std::string adapter_choices(const std::vector<std::string>& arguments, const std::vector<std::string>& adapters) {
  if (adapters.size() > kMostAdapterLines) {
    return repeat_command(arguments, "--exclude '**.OTHER**'") + ", with one --exclude for each of the others";
  }
  std::vector<std::string> lines;
  for (const std::string& taken : adapters) {
    std::string words;
    for (const std::string& other : adapters) {
      if (other == taken) continue;
      words +=
          fmt::format("{}--exclude {}", words.empty() ? "" : " ", shell_quoted("**." + glob_of_name(other) + "**"));
    }
    lines.push_back(repeat_command(arguments, words));
  }
  return fmt::format("{}", fmt::join(lines, ", or "));
}

[[noreturn]] void refuse_adapters(const std::vector<std::string>& arguments, const std::string& label,
                                  const std::vector<std::string>& adapters) {
  throw usage(fmt::format("cannot choose which adapter of '{}' to export", label))
      .in_file(label)
      .because(fmt::format("it contains several: {}", first_names(adapters)))
      .hint(adapter_choices(arguments, adapters));
}

/// The command that exports the adapter of a source that also contains the base model.
std::string adapter_line(const std::vector<std::string>& arguments, const Catalog& catalog) {
  const auto is_saved = [](const Tensor& each) {
    return each.name.find(".modules_to_save.") != std::string_view::npos;
  };
  std::string words = "--include '**lora_**'";
  if (std::ranges::any_of(catalog.tensors, is_saved)) words += " --include '**.modules_to_save.**'";
  return repeat_command(arguments, words);
}

ModelPart Export::find_part(const Catalog& catalog) {
  check_globs({&catalog}, request_.exporting.names);
  const std::string& label = export_.source().label;
  try {
    ModelPart part = export_.find_part(catalog);
    if (!part.choices.empty()) refuse_choices(session_.command.arguments, label, part.choices);
    if (part.adapters.size() > 1) refuse_adapters(session_.command.arguments, label, part.adapters);
    return part;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotFound) {  // A file of the reference's weights.
      throw Error(error).hint(fmt::format("fetch it, or export without comparing names and shapes: {}",
                                          repeat_command(session_.command.arguments, "--no-check")));
    }
    if (error.code() != ErrorCode::kUnsupported || !is_lora(error.tensor())) throw;
    throw Error(error).hint(fmt::format("export only the adapter, then merge it into the base model with --lora: {}",
                                        adapter_line(session_.command.arguments, catalog)));
  }
}

void Export::say_what_is_taken() const {
  if (!is_rank_zero(session_)) return;
  if (const std::vector<std::string>& code = export_.listed_files().code; !code.empty()) {
    note(session_, fmt::format("export: copied code: {}", first_names(code)));
  }
  const ExportReport& report = export_.report();
  if (report.other_tensors + report.objects > 0) {
    note(session_, fmt::format("export: skipped {} of other states, {}", plural(report.other_tensors, "tensor"),
                               plural(report.objects, "object")));
  }
}

std::vector<std::string> Export::warnings_of(const Catalog& catalog, const ModelPart& part) const {
  std::vector<std::string> warnings = catalog.warnings;
  std::erase_if(warnings, hf_index::is_others_warning);  // See warnings_of_others.
  append(warnings,
         warnings_of_reference(part.is_adapter, part.is_adapter ? export_.adapter_folder() : export_.folder()));
  if (const std::string& weights = export_.report().unread_weights; !weights.empty()) {
    warnings.push_back(fmt::format("names and shapes are not compared with {}: it is not a safetensors file", weights));
  }
  if (export_.lacks_codes(catalog, part)) {
    warnings.push_back(
        fmt::format("the model's config states quantized weights, but the exported ones are plain, so loaders would "
                    "fail; to export a plain config: {}",
                    repeat_command(session_.command.arguments, "--dequantize")));
  }
  const auto takes_part = export_.chosen_names();
  const FirstNames dropped = objects_with_tensors(catalog, [&](std::uint32_t object) {
    return takes_part(catalog.objects[object].name) && !std::ranges::binary_search(part.objects, object);
  });
  if (dropped.count() > 0) warnings.push_back(dropped_tensors_text(dropped));
  for (const BesideModel& each : part.beside) {
    const bool is_container = each.tensors != 1 || catalog.find(each.container) == nullptr;
    const std::string glob = glob_of_name(each.container) + (is_container ? ".**" : "");
    warnings.push_back(fmt::format("skipped '{}': {} beside '{}'; to export it instead: {}", each.container,
                                   plural(each.tensors, "tensor"), part.container,
                                   repeat_command(session_.command.arguments, "--include " + shell_quoted(glob))));
  }
  append(warnings, warnings_of_files(export_.listed_files(), export_.report().reference));
  append(warnings, warnings_of_others(export_.left_behind(catalog)));
  return warnings;
}

/// make_target would refuse them too, but its hint could only contain names that export has already changed.
void Export::refuse_differing_ranks(const OpenSource& source, const Selection& selection) const {
  std::vector<std::string> names;
  for (std::size_t i = 1; i < selection.tensors.size(); ++i) {
    const SelectedTensor &a = selection.tensors[i - 1], &b = selection.tensors[i];
    const bool differ =
        a.name == b.name && source.catalog().tensors[a.source].rank != source.catalog().tensors[b.source].rank;
    if (differ && (names.empty() || names.back() != b.name)) names.emplace_back(b.name);
  }
  if (names.empty()) return;
  const std::string exclusion = exclusion_of(source, selection, names);
  Error error = ranks_differ(names);
  if (!exclusion.empty()) error.hint(repeat_command(session_.command.arguments, exclusion));
  throw error;
}

void Export::adjust(OpenSource& source, Selection& selection) {
  refuse_differing_ranks(source, selection);
  const ReferenceDifference difference = export_.adjust(*source.reader, selection);
  if (difference.empty()) return;
  const std::vector<std::string_view> maps =
      request_.read.map.empty() ? fitting_maps(source) : std::vector<std::string_view>();
  session_.error_details = lines_of(difference);
  const bool are_only_unexpected = difference.missing.empty() && difference.shapes.empty();
  const std::string exclusion =
      are_only_unexpected ? exclusion_of(source, selection, difference.unexpected) : std::string();
  throw export_.mismatch(difference).hint(remedy_for(difference, maps, exclusion));
}

/// --exclude options for the tensors with `names` (sorted). Empty if no few globs match only these.
std::string Export::exclusion_of(const OpenSource& source, const Selection& selection,
                                 const std::vector<std::string>& names) const {
  const bool are_known = request_.read.map.empty() && source.catalog().tensors.size() == source_names_.size();
  if (!are_known) return {};
  std::vector<std::string_view> unexpected, others;
  for (const SelectedTensor& each : selection.tensors) {
    const bool is_unexpected = std::ranges::binary_search(names, each.name);
    (is_unexpected ? unexpected : others).push_back(source_names_[each.source]);
  }
  std::vector<std::string> words;
  for (const std::string& glob : guess_exclusions(unexpected, others))
    words.push_back("--exclude " + shell_quoted(glob));
  return fmt::format("{}", fmt::join(words, " "));
}

/// True if the names and shapes that a built-in map gives would match the reference.
bool Export::fits_by_map(const OpenSource& source, const std::string& name) const try {
  const std::set<std::string> may_lack = export_.may_lack();
  const ModelMap map = choose_map(source_place(session_), name, request_.read.numbers, source, MapUse::kUndo, 1);
  const Catalog logical = UndoneMap(source.catalog(), map).make_catalog(source.catalog());
  std::vector<SelectedTensor> tensors;
  for (std::uint32_t i = 0; i < logical.tensors.size(); ++i) {
    const Tensor& tensor = logical.tensors[i];
    if (!may_lack.contains(std::string(tensor.name))) tensors.push_back({i, tensor.dtype, tensor.name, {}});
  }
  const ReferenceDifference left = compare_with_reference(tensors, logical, *export_.reference_weights(), may_lack);
  return left.missing.empty() && left.shapes.empty() && left.unexpected.size() <= 1;  // A tied head may remain.
} catch (const Error&) {
  return false;  // The map does not fit this model, so there is nothing to suggest.
}

/// The built-in maps for one file or one set of names. Those with a mesh are for files of ranks.
std::vector<std::string_view> Export::fitting_maps(const OpenSource& source) const {
  std::vector<std::string_view> fitting;
  for (const BuiltinMap& map : builtin_maps()) {
    const std::string name(map.name);
    if (!open_map(source_place(session_), name).has_mesh() && fits_by_map(source, name)) fitting.push_back(map.name);
  }
  return fitting;
}

std::string Export::remedy_for(const ReferenceDifference& difference, const std::vector<std::string_view>& maps,
                               const std::string& exclusion) const {
  const PrefixGuess guess = guess_prefix(difference);
  if (!guess.strip.empty()) return repeat_command(session_.command.arguments, "--strip-prefix " + guess.strip);
  if (!guess.add.empty()) return repeat_command(session_.command.arguments, "--add-prefix " + guess.add);
  if (maps.size() == 1) return repeat_command(session_.command.arguments, fmt::format("--map {}", maps.front()));
  if (!maps.empty()) return fmt::format("add --map with the model's family: {}", fmt::join(maps, ", "));
  if (!exclusion.empty()) {
    return fmt::format("exclude them: {}; --no-check keeps them",
                       repeat_command(session_.command.arguments, exclusion));
  }
  return "see all of them with --json, or export anyway with --no-check, for example if these are the names of "
         "transformers 5 in memory, which it loads";
}

}  // namespace

void check_export(const Session&, Request& request) {
  const std::string& dtype = request.exporting.dtype;
  if (dtype != kKeepDtypes && dtype != kAutoDtypes && !dtype_of_name(dtype)) {
    throw usage(fmt::format("--dtype {}: not a dtype", dtype)).hint("give a dtype such as bfloat16, or auto, or keep");
  }
  if (!format_of_suffix(request.write.path).empty()) {
    throw usage("export writes a folder")
        .because(fmt::format("'{}' has the suffix of a single file", request.write.path));
  }
  const std::string& to = request.write.to;
  std::vector<std::string_view> loaded;
  for (const Format* format : formats()) {
    if (!format->loader_suffix.empty()) loaded.push_back(format->traits.name);
  }
  if (!to.empty() && std::ranges::find(loaded, to) == loaded.end()) {
    throw usage(fmt::format("export does not write {}", to))
        .hint(fmt::format("drop --to, or write {}", fmt::join(loaded, " or ")));
  }
  request.select.keep_objects = false;
  request.exporting.names.include = std::exchange(request.select.include, {});
  request.exporting.names.exclude = std::exchange(request.select.exclude, {});
}

int run_export(Session& session, const Request& request) { return Export(session, request).run(); }

}  // namespace shard::app

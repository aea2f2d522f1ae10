#include "apps/shardctl/verbs/copy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string_view>
#include <utility>

#include "apps/shardctl/render/report.h"
#include "apps/shardctl/request/command_text.h"
#include "apps/shardctl/session/device.h"
#include "apps/shardctl/session/progress.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/session/versions.h"
#include "apps/shardctl/source/cast_choice.h"
#include "apps/shardctl/source/object_check.h"
#include "apps/shardctl/target/conversion_warnings.h"
#include "apps/shardctl/target/target_choice.h"
#include "apps/shardctl/text/units.h"
#include "apps/shardctl/text/value_text.h"
#include "apps/shardctl/verbs/verbs.h"
#include "formats/export/model_folder.h"
#include "formats/open/map_choice.h"
#include "formats/open/requested_adapters.h"
#include "formats/registry.h"
#include "libshard/catalog/originals.h"
#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/core/short_text.h"
#include "libshard/io/local_output.h"
#include "libshard/io/paths.h"
#include "libshard/io/url_path.h"
#include "libshard/job/copy_job.h"
#include "libshard/job/topology.h"
#include "libshard/job/unchanged_output.h"
#include "libshard/manifest/source_identity.h"
#include "libshard/map/passes/mapped_reader.h"
#include "libshard/stores/object_output.h"
#include "libshard/stores/url_store.h"

namespace shard::app {
namespace {

/// Whether each rank writes to its own DST.
bool has_own_places(const Session& session, const RunRequest& run) {
  return run.local_output && session.group->size() > 1;
}

/// Lengths precede the values, which may contain anything.
std::string lines(std::string_view what, const std::vector<std::string>& values) {
  std::string text = fmt::format("{} {}\n", what, values.size());
  for (const std::string& value : values) text += fmt::format("{} {}\n", value.size(), value);
  return text;
}

/// The options that decide the values of computed tensors; empty without them.
std::string computation_text(const CopyRequest& request) {
  const ReadRequest& source = request.read;
  std::string text;
  if (source.dequantize) text += lines("dequantize", {std::string(dtype_name(*source.dequantize))});
  if (!source.lora.empty()) text += lines("lora", source.lora);
  if (source.requantize) text += "requantize\n";
  const AverageRequest& average = request.averaging;
  if (!average.factors.empty()) {
    text += fmt::format("average {} {} {}\n", fmt::join(average.factors, ","), average.dtype, average.optimizer);
    text += lines("sources", source.paths);
  }
  return text;
}

/// Adds the content of the files that the options for adapters and maps name.
void add_computation_files(const Session& session, const CopyRequest& request, Hasher& hasher) {
  const SourceStore& store = source_store(session);
  for (const AdapterRequest& adapter : request.read.adapters) {
    hasher.update(source_digest(identify_source(store, files_of_adapter(store, adapter.path))));
  }
  for (const std::string& name : {request.read.map, request.write.map}) {
    if (!name.empty()) hasher.update(open_map(source_place(session), name).text);
    hasher.update("\n");
  }
  const std::string config = find_config(store, request.read.numbers, request.read.paths);
  if (!config.empty()) hasher.update(source_digest(identify_source(store, {config})));
}

/// All options that influence the output, line by line.
std::string options_text(const Session& session, const CopyRequest& request) {
  const ReadRequest& source = request.read;
  const WriteRequest& target = request.write;
  const LayoutRequest& layout = target.layout;
  const SelectionOptions& names = request.select;
  std::string text = lines("texts", {session.command.verb, source.from, target.to, layout.mesh, layout.max_shard_size,
                                     base_name(target.path), source.map, target.map, request.exporting.dtype});
  text += computation_text(request);
  text += fmt::format("opaque {} ranks-expected {}\n", source.opaque_globals, source.ranks_expected.value_or(0));
  for (const FormatChoices* choices : {&source.choices, &target.choices}) {
    for (const auto& [name, word] : *choices) text += lines("choice", {name, word});
  }
  text += fmt::format("ranks {} dim {} shards {} as {}\n", layout.ranks.value_or(0), layout.dim.value_or(0),
                      layout.shards.value_or(0), target.rank_files ? static_cast<int>(*target.rank_files) : -1);
  text += fmt::format("objects {} check {}\n", names.keep_objects, !request.exporting.no_check);
  text += lines("place", layout.place) + lines("set", source.numbers.set);
  for (const SelectionOptions* each : {&names, &request.exporting.names}) {
    text += lines("include", each->include) + lines("exclude", each->exclude);
  }
  text += lines("strip", names.strip_prefix) + lines("add", names.add_prefix);
  return text + lines("rename", names.rename) + lines("cast", names.cast);
}

/// A digest of all options. Files that options name count by their content.
std::string options_digest(const Session& session, const CopyRequest& request, const std::vector<std::string>& beside) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(options_text(session, request));
  if (has_own_places(session, request.run)) hasher.update(fmt::format("places {}\n", session.group->size()));
  for (const std::string& path :
       {request.write.layout.layout, request.write.layout.like, request.read.layout, request.like}) {
    if (!path.empty()) hasher.update(source_digest(identify_source(source_store(session), {path})));
    hasher.update("\n");
  }
  if (const std::string& reference = request.read.numbers.hf_ref; !reference.empty()) {
    const SourceStore& store = source_store(session);
    hasher.update(source_digest(identify_source(store, reference_files(store, reference))));
  }
  if (!beside.empty()) hasher.update(source_digest(identify_source(source_store(session), beside)));
  add_computation_files(session, request, hasher);
  return hasher.finish_hex();
}

/// The requested manifest; nothing without --checksum and --if-changed. Reads the ends of the source's files.
/// \param beside  other files that influence the output
/// \throws Error kNotFound  a path of the source does not exist
std::optional<ManifestRequest> manifest_request(const Session& session, const CopyRequest& request,
                                                const std::vector<std::string>& beside) {
  if (!request.write.wants_manifest()) return std::nullopt;
  ManifestRequest made;
  made.algorithm = request.write.checksum == "sha256" ? HashAlgorithm::kSha256 : HashAlgorithm::kXxh3_128;
  made.tool = "shardctl " + own_version();
  made.source = identify_source(source_store(session), request.read.paths);
  made.options = options_digest(session, request, beside);
  return made;
}

/// See CopyJob::computation: dequantization, adapters, averages and model maps.
std::string computation_digest(const Session& session, const CopyRequest& request) {
  std::string text = computation_text(request);
  const bool has_map = !request.read.map.empty() || !request.write.map.empty();
  if (text.empty() && !has_map) return {};
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(text + lines("set", request.read.numbers.set));
  add_computation_files(session, request, hasher);
  return hasher.finish_hex();
}

/// DST's manifest if DST is up to date; see shard::unchanged_output. Collective.
std::optional<Manifest> unchanged_output(const Session& session, const CopyRequest& request,
                                         const std::vector<std::string>& beside) {
  const CollectiveStepOptions step{.stop = session.stop, .traffic = session.peer_store};
  begin_step(session, "catalog");
  const SourceStore& store = destination_store(session);
  return unchanged_output(*session.group, step, store, session.fs, request.write.path,
                          has_own_places(session, request.run),
                          [&] { return *manifest_request(session, request, beside); });
}

/// The first option that restricts or changes the source's content, or empty.
std::string find_change(const CopyRequest& request) {
  const SelectionOptions& selection = request.select;
  const LayoutRequest& layout = request.write.layout;
  const struct {
    bool is_given;
    std::string_view option;
  } changes[] = {{!selection.include.empty(), "--include"},
                 {!selection.exclude.empty(), "--exclude"},
                 {!selection.strip_prefix.empty(), "--strip-prefix"},
                 {!selection.add_prefix.empty(), "--add-prefix"},
                 {!selection.rename.empty(), "--rename"},
                 {!selection.cast.empty(), "--cast"},
                 {!selection.keep_objects, "--objects drop"},
                 {request.read.dequantize.has_value(), "--dequantize"},
                 {!request.read.adapters.empty(), "--lora"},
                 {!request.read.map.empty(), "--map"},
                 {!request.write.map.empty(), "--to-map"},
                 {layout.dim.has_value(), "--dim"},
                 {!layout.mesh.empty(), "--mesh"},
                 {!layout.layout.empty(), "--layout"},
                 {!layout.like.empty(), "--like"}};
  for (const auto& [is_given, option] : changes) {
    if (is_given) return std::string(option);
  }
  for (const FormatOption& option : format_options(&Format::read_options)) {
    if (choice(request.read.choices, option) != option.words.front()) return fmt::format("--{}", option.name);
  }
  return {};
}

/// Opens the source again, with everything in its files, and computes the output of `format`.
/// \throws Error kUnsupported  the source has a different format; an option restricts or changes the content, or
///   requests a layout other than --ranks; the verb or the format does not support this.
Rewrite open_rewrite(const Session& session, const CopyRequest& request, const Format& format,
                     const OpenSource& source) {
  const std::string_view name = format.traits.name;
  if (!request.write.defaults.rewrites) {
    throw Error(ErrorCode::kUnsupported, fmt::format("{} cannot write {}", session.command.verb, name))
        .hint(request.write.defaults.keeps_format ? repeat_command(session.command.arguments, "--to dcp")
                                                  : fmt::format("use reshard or convert with --to {}", name));
  }
  if (source.format->traits.name != format.rewrites) {
    throw Error(ErrorCode::kUnsupported, fmt::format("--to {} needs a {} source", name, format.rewrites))
        .because("its files contain more than named tensors and objects")
        .found(source.format->traits.name);
  }
  if (const std::string option = find_change(request); !option.empty()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot write {} with {}", name, option))
        .because("this format is always written whole and unchanged")
        .hint(fmt::format("drop {}", option));
  }
  const Source opened{&source_store(session), source.paths};
  OpenOptions how;
  how.opaque_globals = request.read.opaque_globals;
  how.ranks_expected = request.read.ranks_expected;
  try {
    return format.rewrite(opened, how, {.ranks = request.write.layout.ranks});
  } catch (const Error& error) {
    // The source was readable, so only this form of its output is unsupported.
    if (error.code() != ErrorCode::kUnsupported || !error.hint().empty() || !error.suggestions().empty()) throw;
    throw Error(error).suggest(Remedy::kWriteAs, "dcp");
  }
}

/// The objects of a run. The job borrows those that it does not own.
struct Work {
  std::unique_ptr<Device> device;
  TargetForm form;
  OpenSource source;
  ChosenLayout layout;
  FormatTraits traits;  ///< The target's traits.
  CopyJob job;
  std::unique_ptr<OutputStore> output;  ///< Checked, but not created.
  std::unique_ptr<AppliedMap> to_map;   ///< Null: the target stores the tensors in their own form.
  std::vector<AddedFile> carried;       ///< Files of the source's folder that are copied unchanged.
  std::vector<std::string> losses;
  std::optional<ManifestRequest> manifest;
};

/// Lightning loads a DCP folder only with its own metadata, which belong to no rank. Ranks that see different files of
/// the source, or write different folders, copy none.
std::vector<AddedFile> files_of_trainer(const Session& session, const CopyRequest& request, const Work& work) {
  constexpr std::string_view kFormat = "dcp";
  const std::string metadata = "meta.pt";
  if (work.source.format->traits.name != kFormat || work.form.format != work.source.format) return {};
  if (session.peer_store != nullptr || has_own_places(session, request.run)) return {};
  const SourceStore& store = source_store(session);
  const std::string& folder = work.source.paths.front();
  if (!contains(names_beside(session, work.source, {}), metadata)) return {};
  if (!store.is_file(join_path(folder, metadata))) return {};
  return {added_file(store, folder, metadata)};
}

/// Whether --to-map defines the tensors of each rank, for a format that can store these.
bool is_cut_by_map(const Session& session, const std::string& to_map, const TargetForm& form) {
  if (to_map.empty()) return false;
  const OpenedMap& map = open_map(source_place(session), to_map);
  if (!map.has_mesh()) return false;
  return form.format->traits.mapped_ranks || form.format == &map_format(map.files_of_ranks().container);
}

/// The traits of files with each rank's own tensors: no objects, and no sharing of storages.
FormatTraits traits_of_own_tensors(std::string_view format) {
  return {.name = format, .pieces = true, .many_files = false, .mapped_ranks = true};
}

CopyJob make_job(const Session& session, const CopyRequest& request, const CopyVerb& verb, Work& work) {
  WriteOptions write = choose_write_options(request.write, work.form, work.source.catalog(), work.layout);
  if (!work.form.single_file) write.base_name = verb.exported == nullptr ? std::string() : verb.exported->stem;
  CopyJob job;
  job.reader = work.source.reader.get();
  work.traits = traits_of(*work.form.format, write);
  // Otherwise, tensors that a map builds from parts of a storage would keep the whole storage.
  if (work.source.is_mapped) work.traits.sharing = false;
  const Format* format = work.form.format;
  if (is_cut_by_map(session, request.write.map, work.form) && !work.traits.mapped_ranks) {
    work.traits = traits_of_own_tensors(work.traits.name);
    format = &file_format_of(*format);
    write.root = open_map(source_place(session), request.write.map).files_of_ranks().root;
  }
  job.reflink_disk = is_url(request.write.path) ? nullptr : &session.fs;
  job.make_writer = [format, write, wrap = verb.wrap_writer, carried = work.carried,
                     disk = job.reflink_disk](const Catalog&) {
    std::unique_ptr<Writer> writer = writer_of(*format, write);
    if (!carried.empty()) writer = with_added_files(std::move(writer), carried, disk);
    return wrap ? wrap(std::move(writer)) : std::move(writer);
  };
  job.threads = worker_count(session);
  job.max_memory_bytes = max_memory_bytes(session);
  job.device = work.device.get();
  job.timeout = timeout_of(request.run);
  job.dry_run = request.write.dry_run;
  job.version = own_version();
  job.computation = computation_digest(session, request);
  job.resume = request.write.resume;
  job.stop = session.stop;
  job.topology = {.peer_store = session.peer_store, .own_places = has_own_places(session, request.run)};
  job.watched = session.watched;
  job.manifest = work.manifest;
  return job;
}

std::unique_ptr<OutputStore> open_object_output(const Session& session, const WriteRequest& target,
                                                const std::vector<std::string>& sources) {
  const StoreOptions& stores = session.common.stores;
  ObjectOutputOptions options{.force = target.force,
                              .resume = target.resume,
                              .is_root = is_rank_zero(session),
                              .memory_bytes = stores.upload_bytes,
                              .connections = std::max(1, stores.connections / session.ranks_here)};
  if (options.is_root) options.says = [&session](const std::string& text) { note(session, text); };
  return object_output(session.urls->objects(target.path), target.path, sources, options);
}

/// Opens the destination after checking that it does not overlap any file that is read.
std::unique_ptr<OutputStore> open_output(const Session& session, const CopyRequest& request, const CopyVerb& verb,
                                         const OpenSource& source) {
  const WriteRequest& target = request.write;
  std::vector<std::string> sources = source.paths;
  std::ranges::copy(request.read.named_inputs, std::back_inserter(sources));
  const std::string& reference = request.read.numbers.hf_ref;
  if (verb.exported == nullptr && !reference.empty()) sources.push_back(reference);
  if (verb.exported != nullptr) {  // A trainer's folder may contain the output. Only the files that are read count.
    std::ranges::copy(verb.exported->read_paths, std::back_inserter(sources));
  }
  if (is_url(target.path)) return open_object_output(session, target, sources);
  return local_output(session.fs, target.path, sources, {.force = target.force, .sync = !target.no_fsync});
}

/// Checks the layout options against --to-map. A map with a mesh defines each rank's tensors, so it permits only the
/// number of ranks.
void check_layout_of_map(const Session& session, const WriteRequest& write, const TargetForm& form,
                         const ModelMap& map) {
  const LayoutRequest& layout = write.layout;
  const bool has_mesh = !map.mesh().empty();
  const bool is_laid_out = !layout.mesh.empty() || !layout.layout.empty() || !layout.like.empty() || layout.dim;
  if (is_laid_out && (has_mesh || form.format->traits.mapped_ranks)) {
    throw usage("cannot combine other layout options with a map that shards over ranks")
        .because(fmt::format("{} already defines the content of each rank", write.map))
        .hint("give only the number of ranks: --ranks N");
  }
  if (has_mesh && write.rank_files.value_or(RankFiles::kPlain) != RankFiles::kPlain) {
    throw usage("--as applies only to tensors that a layout shards")
        .because(fmt::format("{} defines the content of each rank, and ranks store plain tensors", write.map));
  }
  const FormatTraits& traits = form.format->traits;
  if (!has_mesh && layout.ranks && !traits.pieces) throw holds_whole_tensors(*form.format);
  const Format& of_ranks = map_format(open_map(source_place(session), write.map).files_of_ranks().container);
  if (map.ranks() > 1 && !traits.mapped_ranks && form.format != &of_ranks) {
    throw Error(ErrorCode::kUnsupported, fmt::format("{} cannot store tensors that {} shards over {} ranks",
                                                     traits.name, write.map, map.ranks()))
        .suggest(Remedy::kWriteAs, of_ranks.traits.name);
  }
  const std::int64_t wanted = layout.ranks.value_or(map.ranks());
  if (wanted == map.ranks() || !(has_mesh || form.format->traits.mapped_ranks)) return;
  throw usage(fmt::format("{} is a map for a different number of ranks", write.map))
      .expected(map.ranks())
      .found(wanted);
}

/// Sets up the job to write the selection in the form of --to-map.
void apply_map(const Session& session, const CopyRequest& request, const Selection& selection, Work& work) {
  const ModelMap map = choose_map(source_place(session), request.write.map, request.read.numbers, work.source,
                                  MapUse::kMake, request.write.layout.ranks.value_or(1));
  check_layout_of_map(session, request.write, work.form, map);
  try {
    work.to_map = std::make_unique<AppliedMap>(work.source.catalog(), selection, map);
  } catch (Error& error) {
    throw in_map(source_place(session), request.write.map, error);
  }
  append(work.losses, work.to_map->warnings());
  std::vector<bool> is_mapped(work.source.catalog().tensors.size());
  for (const SelectedTensor& each : selection.tensors) is_mapped[each.source] = true;
  check_scales_follow(work.source.catalog(), work.to_map->stored(),
                      [&](std::uint32_t tensor) { return !is_mapped[tensor]; });
  std::uint32_t first_padding = 0;
  add_map_arithmetic(work.source, work.to_map->computed(), MapUse::kMake);
  if (!work.to_map->paddings().empty()) {
    auto padded = std::make_unique<PaddedReader>(std::move(work.source.reader), work.to_map->paddings());
    first_padding = padded->first_padding();
    work.source.reader = std::move(padded);
  }
  work.job.reader = work.source.reader.get();
  work.job.target = mapped_target(*work.to_map, work.layout.layout, work.traits, first_padding);
}

/// Sets up the job to write the whole source unchanged, in a different arrangement of files.
void prepare_rewrite(const Session& session, const CopyRequest& request, const CopyVerb& verb, Work& work, Log& log) {
  const auto made = std::make_shared<Rewrite>(open_rewrite(session, request, *work.form.format, work.source));
  work.source.reader = std::move(made->reader);
  log.debug(fmt::format("rearranged: {}, {}", plural(std::ssize(made->target.tensors), "tensor"),
                        plural(std::ssize(made->target.objects), "object")));
  work.job = make_job(session, request, verb, work);
  work.job.target.make = [made] { return std::move(made->target); };
  work.job.make_writer = [made](const Catalog&) { return std::move(made->writer); };
  work.output = open_output(session, request, verb, work.source);
  check_objects(
      work.source.catalog(),
      {.selection = request.select, .arguments = session.command.arguments, .done = "written", .faults = verb.faults});
}

/// Refuses to convert or rename items that can only be copied unchanged.
void refuse_kept_items(const Catalog& source, const SelectionOptions& selection, std::string_view format) {
  if (source.originals == nullptr || source.originals->kept.empty()) return;
  const bool is_renamed = !selection.rename.empty() || !selection.strip_prefix.empty() || !selection.add_prefix.empty();
  if (source.originals->format == format && !is_renamed) return;
  const std::string name(source.originals->kept.front().name);
  throw Error(ErrorCode::kUnsupported,
              fmt::format("cannot write '{}' as {}{}", name, format, is_renamed ? " under another name" : ""))
      .of_tensor(name)
      .because("its class is not supported, so it can only be copied unchanged")
      .suggest(Remedy::kExclude, name);
}

/// Plans the run and rejects invalid requests. The cheapest checks come first, because reading objects can be
/// expensive.
Work prepare(const Session& session, const CopyRequest& request, const CopyVerb& verb, Log& log) {
  Work work;
  work.manifest = manifest_request(session, request, verb.beside);  // Record the source before reading it.
  // --to and DST's suffix may contradict each other, regardless of the source.
  work.form = choose_form(session, request.write);
  work.device = open_device(session, request.run);
  if (work.device != nullptr) {
    const DeviceInfo& info = work.device->info();
    log.info(
        fmt::format("device cuda:{}: {}, {} free", info.number, info.name, human_bytes(work.device->free_bytes())));
  }
  work.source = verb.open(session, request, log);
  // A verb may keep the source's format, which is known only now; the default layout depends on it.
  if (work.form.format == nullptr) work.form.format = work.source.format;
  if (work.form.format->traits.mapped_ranks && request.write.map.empty()) {
    throw usage(fmt::format("cannot write {} without a model map", work.form.format->traits.name))
        .hint(repeat_command(session.command.arguments, "--to-map NAME"));
  }
  work.layout = choose_layout(session, request.write, request.read.opaque_globals, work.form, log);
  if (work.form.format->rewrite != nullptr) {
    prepare_rewrite(session, request, verb, work, log);
    return work;
  }
  work.carried = files_of_trainer(session, request, work);
  work.job = make_job(session, request, verb, work);
  work.output = open_output(session, request, verb, work.source);
  const Catalog& source = work.source.catalog();
  ObjectCheck check{.selection = request.select,
                    .arguments = session.command.arguments,
                    .done = "written",
                    .takes_objects = work.traits.objects,
                    .written_as = work.traits.name,
                    .faults = verb.faults,
                    .may_drop_tensors = verb.exported == nullptr};
  work.losses.push_back(dropped_tensors_text(check_objects(source, check)));
  if (request.select.keep_objects) {
    work.source.reader->load_objects();
    check.takes_objects = true;
    check_objects(source, check);  // Finds obstacles inside values that were not read before.
  }
  refuse_kept_items(source, request.select, work.traits.name);
  // Needs loaded objects, because --include may name a leaf of an object.
  check_globs({&source}, request.select);
  Selection selection = select(source, request.select);
  std::erase_if(selection.tensors, [&](const auto& tensor) { return source.tensors[tensor.source].damaged; });
  if (verb.adjust) verb.adjust(work.source, selection);
  append(work.losses, checked_casts(session, request.select, work.source, selection.tensors, verb.converts_all));
  if (verb.exported != nullptr) append(work.losses, warnings_of_dtypes(*verb.exported));
  if (request.write.map.empty()) {
    work.job.target = selected_target(*work.source.reader, std::move(selection), work.layout.layout, work.traits);
  } else {
    apply_map(session, request, selection, work);
  }
  if (verb.exported == nullptr) {
    append(work.losses, loss_warnings(session, request.select, work.source, work.traits, work.carried));
  }
  std::erase(work.losses, std::string());
  return work;
}

bool holds_something(const Catalog& catalog) { return !catalog.tensors.empty() || !catalog.objects.empty(); }

CopyResult run_job(Session& session, const std::string& destination, OutputStore& output, CopyJob job,
                   Progress& progress, Log& log) {
  ProgressMeter meter(
      session, log, session.command.verb, [&] { return progress.own_bytes(); }, progress.others_bytes);
  job.awaited = meter.awaited();
  const auto on_plan = [&, threads = job.threads](const CopyResult& plan) {
    meter.set_total(plan.bytes_to_write);
    log.info(fmt::format("plan: {} into {}, read {}, write {}", plural(plan.tensors, "tensor"),
                         plural(std::ssize(plan.files), "file"), human_bytes(plan.bytes_to_read),
                         human_bytes(plan.bytes_to_write)));
    log.debug(fmt::format("plan: {} in {}, {} of memory, {}", plural(plan.copies, "copy", "copies"),
                          plural(plan.tiles, "tile"), human_bytes(plan.memory_bytes), plural(threads, "thread")));
  };
  try {
    return run_copy_job(output, *session.group, std::move(job), progress, on_plan);
  } catch (const Error& error) {
    throw of_destination(error, destination);
  }
}

/// Adds warnings about facts that are unknown to the job.
void add_warnings(CopyResult& result, const Work& work, const Progress& progress) {
  if (const std::int64_t overflows = progress.cast_overflows.load(); overflows > 0) {
    result.warnings.push_back(
        fmt::format("{} outside the range of the new dtype", plural(overflows, "value is", "values are")));
  }
  append(result.warnings, work.losses);
  const bool is_empty = result.tensors == 0 && result.objects == 0;
  if (is_empty && holds_something(work.source.catalog())) {
    result.warnings.emplace_back(
        "the output is empty: nothing in the source was selected, or nothing selected can be stored");
  }
}

/// With --if-changed: whether DST is up to date. If so, rank 0 prints this.
bool is_unchanged(const Session& session, const CopyRequest& request, const CopyVerb& verb) {
  if (!request.write.if_changed) return false;
  const std::optional<Manifest> manifest = unchanged_output(session, request, verb.beside);
  if (manifest && is_rank_zero(session))
    render_unchanged(session, request.write, fmt::format("{}", fmt::join(request.read.paths, " ")), *manifest);
  return manifest.has_value();
}

}  // namespace

int run_copy(Session& session, const Request& request) {
  ObjectFaults faults;
  const auto open = [&faults](const Session& own, const CopyRequest& given, Log& log) {
    return open_source(own, given.read, log, {.selection = &given.select, .findings = &faults});
  };
  return run_copy_verb(session, request, {.open = open, .faults = &faults});
}

int run_copy_verb(Session& session, const CopyRequest& request, const CopyVerb& verb) {
  const auto start = std::chrono::steady_clock::now();
  const auto log = open_log(session);
  if (is_unchanged(session, request, verb)) return 0;
  Work work;
  on_all_ranks(session, "catalog", [&] { work = prepare(session, request, verb, *log); });
  work.job.on_step = [&](std::string_view step) {
    log->debug(fmt::format("step {}", step));
    begin_step(session, step);
  };
  Progress progress;
  CopyResult result = run_job(session, request.write.path, *work.output, std::move(work.job), progress, *log);
  if (!is_rank_zero(session)) return 0;
  add_warnings(result, work, progress);
  if (verb.warnings != nullptr) append(result.warnings, *verb.warnings);
  warn_all(session, result.warnings);
  if (verb.salvage != nullptr) warn_of_losses(session, *verb.salvage);
  if (request.write.dry_run) {
    render_plan(session, request.write, work.source.label, result, {verb.salvage, verb.exported});
    return 0;
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  log->debug(fmt::format("{} reads, {} writes, {} between ranks", progress.read_calls.load(),
                         progress.write_calls.load(), human_bytes(progress.bytes_sent.load())));
  if (request.write.resume) {
    log->info(fmt::format("resumed: {} were already written", human_bytes(progress.bytes_kept.load())));
  }
  render_result(session, request.write, work.source.label, result, progress, taken.count(),
                {verb.salvage, verb.exported});
  return 0;
}

}  // namespace shard::app

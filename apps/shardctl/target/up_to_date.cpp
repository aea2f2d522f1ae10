#include "apps/shardctl/target/up_to_date.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/session/versions.h"
#include "apps/shardctl/source/source.h"
#include "formats/export/model_folder.h"
#include "formats/open/map_choice.h"
#include "formats/open/requested_adapters.h"
#include "libshard/io/paths.h"
#include "libshard/job/topology.h"
#include "libshard/job/unchanged_output.h"
#include "libshard/manifest/source_identity.h"

namespace shard::app {
namespace {

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

}  // namespace

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

std::string computation_digest(const Session& session, const CopyRequest& request) {
  std::string text = computation_text(request);
  const bool has_map = !request.read.map.empty() || !request.write.map.empty();
  if (text.empty() && !has_map) return {};
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(text + lines("set", request.read.numbers.set));
  add_computation_files(session, request, hasher);
  return hasher.finish_hex();
}

bool has_own_places(const Session& session, const RunRequest& run) {
  return run.local_output && session.group->size() > 1;
}

std::optional<Manifest> unchanged_output(const Session& session, const CopyRequest& request,
                                         const std::vector<std::string>& beside) {
  const CollectiveStepOptions step{.stop = session.stop, .traffic = session.peer_store};
  begin_step(session, "catalog");
  const SourceStore& store = destination_store(session);
  return unchanged_output(*session.group, step, store, session.fs, request.write.path,
                          has_own_places(session, request.run),
                          [&] { return *manifest_request(session, request, beside); });
}

}  // namespace shard::app

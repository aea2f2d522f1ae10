#include "apps/shardctl/target/up_to_date.h"

#include <fmt/format.h>

#include "apps/shardctl/arguments/verb.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/session/versions.h"
#include "apps/shardctl/source/map_choice.h"
#include "formats/export/model_folder.h"
#include "libshard/io/paths.h"
#include "libshard/job/unchanged_output.h"
#include "libshard/manifest/source_identity.h"

namespace shard::app {
namespace {

/// Lengths stand before the values, which may hold anything.
std::string lines(std::string_view what, const std::vector<std::string>& values) {
  std::string text = fmt::format("{} {}\n", what, values.size());
  for (const std::string& value : values) text += fmt::format("{} {}\n", value.size(), value);
  return text;
}

/// Everything that decides what is written, line by line.
std::string options_text(const Request& options) {
  const ReadRequest& source = options.source;
  const WriteRequest& target = options.target;
  const LayoutRequest& layout = target.layout;
  const SelectionOptions& names = options.selection;
  std::string text =
      lines("texts", {std::string(options.verb->name), source.from, target.to, layout.mesh, layout.max_shard_size,
                      base_name(target.path), target.core_version, source.map, target.map, options.exporting.dtype});
  text += fmt::format("opaque {} ranks-expected {} weights {}\n", source.opaque_globals,
                      source.ranks_expected.value_or(0), static_cast<int>(source.weights));
  text += fmt::format("ranks {} dim {} shards {} as {}\n", layout.ranks.value_or(0), layout.dim.value_or(0),
                      layout.shards.value_or(0), target.rank_files ? static_cast<int>(*target.rank_files) : -1);
  text += fmt::format("objects {} check {}\n", names.keep_objects, !options.exporting.no_check);
  text += lines("place", layout.place) + lines("set", source.numbers.set);
  for (const SelectionOptions* each : {&names, &options.exporting.names}) {
    text += lines("include", each->include) + lines("exclude", each->exclude);
  }
  text += lines("strip", names.strip_prefix) + lines("add", names.add_prefix);
  return text + lines("rename", names.rename) + lines("cast", names.cast);
}

/// The files that options name, besides the source, count like options.
std::string options_digest(const Session& session, const Request& options, const std::vector<std::string>& beside) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(options_text(options));
  if (has_own_places(session, options)) hasher.update(fmt::format("places {}\n", session.group->size()));
  for (const std::string& path :
       {options.target.layout.layout, options.target.layout.like, options.source.layout, options.like}) {
    if (!path.empty()) hasher.update(source_digest(identify_source(source_store(session), {path})));
    hasher.update("\n");
  }
  if (const std::string& reference = options.source.numbers.hf_ref; !reference.empty()) {
    const SourceStore& store = source_store(session);
    hasher.update(source_digest(identify_source(store, reference_files(store, reference))));
  }
  if (!beside.empty()) hasher.update(source_digest(identify_source(source_store(session), beside)));
  for (const std::string& name : {options.source.map, options.target.map}) {
    if (!name.empty()) hasher.update(read_map_text(session, name));
    hasher.update("\n");
  }
  const std::string config = find_config(session, options.source.numbers, options.source.paths);
  if (!config.empty()) hasher.update(source_digest(identify_source(source_store(session), {config})));
  return hasher.finish_hex();
}

}  // namespace

std::optional<ManifestRequest> manifest_request(const Session& session, const Request& options,
                                                const std::vector<std::string>& beside) {
  if (!options.target.wants_manifest()) return std::nullopt;
  ManifestRequest request;
  request.algorithm = options.target.checksum == "sha256" ? HashAlgorithm::kSha256 : HashAlgorithm::kXxh3_128;
  request.tool = "shardctl " + own_version();
  request.source = identify_source(source_store(session), options.source.paths);
  request.options = options_digest(session, options, beside);
  return request;
}

bool has_own_places(const Session& session, const Request& options) {
  return options.ranks.local_output && session.group->size() > 1;
}

std::optional<Manifest> unchanged_output(const Session& session, const Request& options,
                                         const std::vector<std::string>& beside) {
  const CollectiveStepOptions step{.stop = session.stop, .traffic = session.parts};
  begin_step(session, "catalog");
  return unchanged_output(*session.group, step, session.fs, options.target.path, has_own_places(session, options),
                          [&] { return *manifest_request(session, options, beside); });
}

}  // namespace shard::app

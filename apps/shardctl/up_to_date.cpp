#include "apps/shardctl/up_to_date.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/shardctl/manifest_choice.h"
#include "apps/shardctl/map_choice.h"
#include "apps/shardctl/verb.h"
#include "apps/shardctl/versions.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"
#include "libshard/manifest/source_identity.h"

namespace shard::app {
namespace {

std::string lines(std::string_view what, const std::vector<std::string>& values) {
  return fmt::format("{} {}\n{}\n", what, values.size(), fmt::join(values, "\n"));
}

/// Everything that decides what is written, line by line.
std::string options_text(const Options& options) {
  const LayoutOptions& layout = options.target.layout;
  const SelectionOptions& names = options.selection;
  std::string text = fmt::format("{}\nfrom {}\nto {}\n", options.verb->name, options.source.from, options.target.to);
  text += fmt::format("opaque {}\nranks-expected {}\nweights {}\n", options.source.opaque_globals,
                      options.source.ranks_expected.value_or(0), static_cast<int>(options.source.weights));
  text += fmt::format("ranks {} dim {}\nmesh {}\nshards {} size {}\n", layout.ranks.value_or(0), layout.dim.value_or(0),
                      layout.mesh, layout.shards.value_or(0), layout.max_shard_size);
  text += fmt::format("as {}\nobjects {}\nsuffix {}\n",
                      options.target.rank_files ? static_cast<int>(*options.target.rank_files) : -1, names.keep_objects,
                      base_name(options.target.path));
  text += lines("place", layout.place) + lines("include", names.include) + lines("exclude", names.exclude);
  text += fmt::format("core {}\n", options.target.core_version);
  text += fmt::format("map {}\nto-map {}\n", options.source.map, options.target.map);
  text +=
      lines("set", options.source.numbers.set) + lines("strip", names.strip_prefix) + lines("add", names.add_prefix);
  const ExportOptions& exporting = options.exporting;
  text += fmt::format("dtype {}\ncheck {}\n", exporting.dtype, !exporting.no_check);
  text += lines("include", exporting.names.include) + lines("exclude", exporting.names.exclude);
  return text + lines("rename", names.rename) + lines("cast", names.cast);
}

/// The files that options name, besides the source, count like options.
std::string options_digest(const Session& session, const Options& options) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(options_text(options));
  for (const std::string& path : {options.target.layout.layout, options.target.layout.like, options.source.layout,
                                  options.source.numbers.hf_ref}) {
    if (!path.empty()) hasher.update(source_digest(identify_source(source_store(session), {path})));
    hasher.update("\n");
  }
  for (const std::string& name : {options.source.map, options.target.map}) {
    if (!name.empty()) hasher.update(read_map_text(session, name));
    hasher.update("\n");
  }
  const std::string config = find_config(session, options.source.numbers, options.source.paths);
  if (!config.empty()) hasher.update(source_digest(identify_source(source_store(session), {config})));
  return hasher.finish_hex();
}

bool has_all_files(const Session& session, const std::string& destination, const Manifest& manifest) {
  const bool is_folder = session.fs.status(destination).kind == FileKind::kFolder;
  return std::ranges::all_of(manifest.files, [&](const ManifestFile& file) {
    const FileStatus there = session.fs.status(is_folder ? join_path(destination, file.path) : destination);
    return there.kind == FileKind::kFile && there.bytes == file.bytes;
  });
}

}  // namespace

std::optional<ManifestRequest> manifest_request(const Session& session, const Options& options) {
  if (!options.target.wants_manifest()) return std::nullopt;
  ManifestRequest request;
  request.algorithm = options.target.checksum == "sha256" ? HashAlgorithm::kSha256 : HashAlgorithm::kXxh3_128;
  request.tool = "shardctl " + own_version();
  request.source = identify_source(source_store(session), options.source.paths);
  request.options = options_digest(session, options);
  return request;
}

std::optional<Manifest> unchanged_output(const Session& session, const Options& options,
                                         const ManifestRequest& request) {
  const std::string& destination = options.target.path;
  const std::string path = manifest_beside(session.fs, {destination});
  if (path.empty()) return std::nullopt;
  try {
    Manifest manifest = parse_manifest(manifest_bytes(session.fs, path), path);
    const bool is_same = manifest.tool == request.tool && manifest.algorithm == request.algorithm &&
                         manifest.options == request.options && manifest.source == request.source;
    if (is_same && has_all_files(session, destination, manifest)) return manifest;
  } catch (const Error&) {  // A manifest that cannot be read says nothing.
  }
  return std::nullopt;
}

}  // namespace shard::app

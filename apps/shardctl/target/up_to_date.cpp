#include "apps/shardctl/target/up_to_date.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/shardctl/arguments/verb.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/session/versions.h"
#include "apps/shardctl/source/manifest_choice.h"
#include "apps/shardctl/source/map_choice.h"
#include "formats/export/model_folder.h"
#include "libshard/core/error.h"
#include "libshard/io/local_output.h"
#include "libshard/io/paths.h"
#include "libshard/job/output_places.h"
#include "libshard/manifest/source_identity.h"
#include "libshard/ranks/wire.h"

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

/// What rank 0 knows of an output that may be what would be made.
struct Stated {
  bool is_folder = false;
  std::string manifest;  ///< Its text; empty: it is not.
};

Stated find_stated(const Session& session, const Request& options, const std::vector<std::string>& beside) {
  const ManifestRequest request = *manifest_request(session, options, beside);
  const std::string& destination = options.target.path;
  const std::string path = manifest_beside(session.fs, {destination});
  if (path.empty()) return {};
  try {
    std::string text = manifest_bytes(session.fs, path);
    const Manifest manifest = parse_manifest(text, path);
    const bool is_same = manifest.tool == request.tool && manifest.algorithm == request.algorithm &&
                         manifest.options == request.options && manifest.source == request.source;
    if (is_same) return {session.fs.status(destination).kind == FileKind::kFolder, std::move(text)};
  } catch (const Error&) {  // A manifest that cannot be read says nothing.
  }
  return {};
}

/// The places of all ranks. Collective.
OutputPlaces places_of(const Session& session, const Request& options) {
  if (!has_own_places(session, options)) return one_place(session.group->size());
  std::unique_ptr<OutputStore> output;
  on_all_ranks(session, "catalog",
               [&] { output = local_output(session.fs, options.target.path, {}, {.force = true}); });
  return find_places(*session.group, *output);
}

/// Whether a place holds what it should of the files; its root looks.
bool has_files(const Session& session, const std::string& destination, const Stated& stated, const Manifest& manifest,
               const OutputPlaces& places) {
  const int own = session.group->rank();
  if (!places.is_root(own)) return true;
  bool has_some = false;
  for (const ManifestFile& file : manifest.files) {
    const int rank = file.rank.value_or(0);
    if (rank >= session.group->size()) return false;
    if (places.root(rank) != own) continue;
    has_some = true;
    const FileStatus there = session.fs.status(stated.is_folder ? join_path(destination, file.path) : destination);
    if (there.kind != FileKind::kFile || there.bytes != file.bytes) return false;
  }
  const FileKind wanted = stated.is_folder ? FileKind::kFolder : FileKind::kAbsent;
  return has_some || session.fs.status(destination).kind == wanted;
}

/// Of all ranks.
bool is_true_everywhere(Group& group, bool own) {
  const auto mine = static_cast<std::byte>(own ? 1 : 0);
  std::vector<std::byte> all(static_cast<std::size_t>(group.size()));
  group.all_gather({&mine, 1}, all);
  return std::ranges::count(all, std::byte{0}) == 0;
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
  Stated stated;
  on_rank_zero(session, [&] {
    stated = find_stated(session, options, beside);
    return 0;
  });
  WireWriter out;
  out.number(stated.is_folder ? 1 : 0);
  out.text(stated.manifest);
  const Bytes message = broadcast(*session.group, out.take(), 0);
  WireReader in(message);
  stated = {in.number() != 0, in.text()};
  if (stated.manifest.empty()) return std::nullopt;
  Manifest manifest = parse_manifest(stated.manifest, options.target.path);
  const OutputPlaces places = places_of(session, options);
  bool is_whole = false;
  on_all_ranks(session, "catalog",
               [&] { is_whole = has_files(session, options.target.path, stated, manifest, places); });
  return is_true_everywhere(*session.group, is_whole) ? std::optional(std::move(manifest)) : std::nullopt;
}

}  // namespace shard::app

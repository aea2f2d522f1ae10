#include "libshard/job/unchanged_output.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/io/local_output.h"
#include "libshard/io/paths.h"
#include "libshard/job/topology.h"
#include "libshard/ranks/wire.h"

namespace shard {

namespace {

/// An existing output that may be the one that a job would write.
struct StatedOutput {
  bool is_folder = false;
  std::string manifest;  ///< The manifest's text. Empty: it is a different output.
};

StatedOutput find_stated(const SourceStore& store, const std::string& destination, const ManifestRequest& request) {
  const std::string path = manifest_beside(store, {destination});
  if (path.empty()) return {};
  try {
    std::string text = manifest_bytes(store, path);
    const Manifest manifest = parse_manifest(text, path);
    const bool is_same = manifest.tool == request.tool && manifest.algorithm == request.algorithm &&
                         manifest.options == request.options && manifest.source == request.source;
    if (is_same) return {store.is_folder(destination), std::move(text)};
  } catch (const Error&) {  // An unreadable manifest counts as missing.
  }
  return {};
}

/// Sends rank 0's result to all ranks.
StatedOutput shared(Group& group, const StatedOutput& stated) {
  WireWriter out;
  out.number(stated.is_folder ? 1 : 0);
  out.text(stated.manifest);
  const Bytes message = broadcast(group, out.take(), 0);
  WireReader in(message);
  const bool is_folder = in.number() != 0;
  return {is_folder, in.text()};
}

/// True if a place has its files in the right sizes. Only the root of a place checks.
bool has_files(const Group& group, const SourceStore& store, const std::string& destination, bool is_folder,
               const Manifest& manifest, const OutputPlaces& places) {
  const int own = group.rank();
  if (!places.is_root(own)) return true;
  bool has_some = false;
  for (const ManifestFile& file : manifest.files) {
    const int rank = file.rank.value_or(0);
    if (rank >= group.size()) return false;
    if (places.root(rank) != own) continue;
    has_some = true;
    const FileStatus there = store.status(is_folder ? join_path(destination, file.path) : destination);
    if (there.kind != FileKind::kFile || there.bytes != file.bytes) return false;
  }
  const FileKind wanted = is_folder ? FileKind::kFolder : FileKind::kAbsent;
  return has_some || store.status(destination).kind == wanted;
}

bool is_true_everywhere(Group& group, bool own) {
  const std::vector<std::byte> all = all_gather_values(group, static_cast<std::byte>(own ? 1 : 0));
  return std::ranges::count(all, std::byte{0}) == 0;
}

}  // namespace

std::optional<Manifest> unchanged_output(Group& group, const CollectiveStepOptions& step, const SourceStore& store,
                                         LocalDisk& disk, const std::string& destination, bool has_own_places,
                                         const std::function<ManifestRequest()>& request) {
  StatedOutput stated;
  collective_step(group, step, [&](const std::stop_token&) {
    if (group.rank() == 0) stated = find_stated(store, destination, request());
  });
  stated = shared(group, stated);
  if (stated.manifest.empty()) return std::nullopt;
  Manifest manifest = parse_manifest(stated.manifest, destination);
  OutputPlaces places = one_place(group.size());
  if (has_own_places) {
    std::unique_ptr<OutputStore> output;
    collective_step(group, step,
                    [&](const std::stop_token&) { output = local_output(disk, destination, {}, {.force = true}); });
    places = find_places(group, *output, step.stop);
  }
  bool is_whole = false;
  collective_step(group, step, [&](const std::stop_token&) {
    is_whole = has_files(group, store, destination, stated.is_folder, manifest, places);
  });
  return is_true_everywhere(group, is_whole) ? std::optional(std::move(manifest)) : std::nullopt;
}

}  // namespace shard

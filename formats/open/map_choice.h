/// \file
/// Model maps by name: their documents and their numbers.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/open/source.h"
#include "libshard/catalog/rank_paths.h"
#include "libshard/core/error.h"
#include "libshard/map/documents/document.h"
#include "libshard/map/documents/model_map.h"

namespace shard {

/// A model map, by the name of a built-in one or the path of a document.
struct OpenedMap {
  std::string name, text;
  MapDocument document;

  /// True if it defines the tensors that each of several ranks stores.
  bool has_mesh() const { return !document.mesh.empty(); }
  /// The per-rank files to write; defaults if the document lists none.
  MapFiles files_of_ranks() const { return document.files.empty() ? MapFiles() : document.files.front(); }
};

/// Opens the built-in map with that name, or the file. The first call reads and parses it; the result lives as long as
/// `place.maps`.
/// \throws Error kInvalidArgument  neither exists; kNotFound  the file cannot be read; see parse_map_document
const OpenedMap& open_map(const SourcePlace& place, const std::string& name);

/// Names the document of an opened map in an error of the request that names no file. Built-in maps have none.
Error& in_map(const SourcePlace& place, const std::string& map, Error& error);

/// The per-rank files that the request's map names in the source's only folder; nothing if it names none.
/// \throws Error  see find_rank_paths; kNotFound  no such file exists, and the map describes more than their names.
std::optional<RankPaths> named_ranks(const SourcePlace& place, const SourceRequest& request);

/// The path of the config.json of the reference, or else of the folder that find_model_folder finds for a source; empty
/// if there is none.
/// \throws Error kNotFound  the reference has none
std::string find_config(const SourceStore& store, const MapNumbers& numbers, const std::vector<std::string>& sources);

/// The number of ranks whose own tensors a source stores: the variable `ranks` of a map that is undone.
std::int64_t ranks_of(const OpenSource& source);

/// The purpose of a map: to convert from the form of `source` (undo), or to it from `source` (make).
enum class MapUse : std::uint8_t { kUndo, kMake };

/// The map with its numbers: from the arguments and names in `source`, from the config.json of the reference or beside
/// the source, and from MapNumbers::set.
/// \throws Error  see parse_map_document, MapVariables
ModelMap choose_map(const SourcePlace& place, const std::string& name, const MapNumbers& numbers,
                    const OpenSource& source, MapUse use, std::int64_t ranks);

/// Replaces the tensors whose values the map changes. Computes the logical tensors from the stored ones (undo), or the
/// reverse in float32, which the writer converts (make). Tensors that the source computes are not rounded before.
/// \throws Error kUnsupported  ranks have different values of a tensor
void add_map_arithmetic(OpenSource& source, std::span<const MapComputed> computed, MapUse use);

/// Undoes request.map, so that the source consists of logical tensors. `selection` is that of SourceOptions.
/// UndoneMap documents the errors.
void undo_map(const SourcePlace& place, const SourceRequest& request, const SelectionOptions* selection,
              OpenSource& source, const OnStep& on_step = {});

}  // namespace shard

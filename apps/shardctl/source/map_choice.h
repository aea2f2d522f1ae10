/// \file
/// Model maps that the user names: where their documents and numbers are.
#pragma once

#include <string>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/source/source.h"
#include "libshard/catalog/rank_paths.h"
#include "libshard/map/documents/document.h"
#include "libshard/map/documents/model_map.h"

namespace shard::app {

/// A map that the user names.
struct OpenedMap {
  std::string name, text;
  MapDocument document;

  /// True if it defines what each of several ranks stores.
  bool has_mesh() const { return !document.mesh.empty(); }
  /// The files of ranks that are written; defaults if the document lists none.
  MapFiles files_of_ranks() const { return document.files.empty() ? MapFiles() : document.files.front(); }
};

/// The built-in map of that name, or the file. Read and parsed when it is first asked for; valid as long as the
/// session. \throws Error kInvalidArgument  neither exists; kNotFound  the file cannot be read; see parse_map_document
const OpenedMap& open_map(const Session& session, const std::string& name);

/// The files of ranks that the map of the request names in the one folder of the source; nothing where it names none.
/// \throws Error  see find_rank_paths; kNotFound  none is there although the map says more of them than their names.
std::optional<RankPaths> named_ranks(const Session& session, const ReadRequest& read);

/// The config.json of --hf-ref, else that of the folder that find_model_folder finds for a source; empty where there is
/// none.
/// \throws Error kNotFound  --hf-ref has none
std::string find_config(const Session& session, const MapNumbers& numbers, const std::vector<std::string>& sources);

/// How many ranks hold tensors of their own in a source: the variable `ranks` of a map that is undone.
std::int64_t ranks_of(const OpenSource& source);

/// What a map is chosen for: `source` holds what it is undone on, or what it is made of.
enum class MapUse : std::uint8_t { kUndo, kMake };

/// The map with its numbers: from the arguments and names of `source`, from the config.json of --hf-ref or beside the
/// source, from --set. \throws Error  see parse_map_document, MapVariables
ModelMap choose_map(const Session& session, const std::string& name, const MapNumbers& numbers,
                    const OpenSource& source, MapUse use, std::int64_t ranks);

/// Makes the source one of logical tensors, by read.map. See UndoneMap for what is refused.
void undo_map(const Session& session, const ReadRequest& read, const SelectionOptions* selection, OpenSource& source,
              Log& log);

}  // namespace shard::app

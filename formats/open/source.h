/// \file
/// Opens a source as its user describes it: with a format, a layout document, dequantization and a model map. The
/// program and the Python module open every source here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/format.h"
#include "libshard/catalog/layouts/layout.h"
#include "libshard/catalog/quantized.h"
#include "libshard/catalog/rank_paths.h"
#include "libshard/catalog/selection/selection.h"
#include "libshard/core/dtype.h"
#include "libshard/repair/salvage.h"

namespace shard {

class ComputedReader;
class ObjectFaults;
struct OpenedMap;

/// Sources of a model map's numbers, besides the checkpoint.
struct MapNumbers {
  std::vector<std::string> set;     ///< "NAME=VALUE".
  std::string hf_ref;               ///< The reference: a folder with a config.json.
  std::vector<std::string> maps{};  ///< All maps of the request: `set` may name variables of each.
};

/// An adapter (LoRA) to merge into a source.
struct AdapterRequest {
  std::string path;
  double weight = 1;
};

/// The source and the way to read it.
struct SourceRequest {
  std::vector<std::string> paths;
  std::string from;    ///< Name of the format; empty: the one that the content shows.
  std::string layout;  ///< Path of a layout document that describes how the source is sharded; empty: none.
  bool opaque_globals = false;
  FormatChoices choices;  ///< See Format::read_options.
  std::optional<std::int64_t> ranks_expected;
  std::optional<DType> dequantize;  ///< Compute quantized weights in this dtype.
  std::string map;                  ///< Name or path of the model map to undo; empty: none.
  MapNumbers numbers;
  std::vector<AdapterRequest> adapters{};  ///< Merged in this order, see undo_map_and_merge.
  bool requantize = false;  ///< With adapters: keep the quantized form of SRC. Not with `dequantize` or `map`.
};

/// The model maps of one run, by name; see open_map.
using OpenedMaps = std::map<std::string, std::shared_ptr<const OpenedMap>>;

/// The environment of opening. Ownership: outlives the opened sources. Threads: one.
struct SourcePlace {
  const SourceStore& store;
  OpenedMaps& maps;
  int threads = 1;
};

struct OpenSource {
  std::string label;  ///< The user's words; several paths are joined by spaces.
  std::vector<std::string> paths;
  const Format* format = nullptr;
  /// From SourceRequest::layout, if it describes the source. The reader may use it at any time.
  std::unique_ptr<MeshLayout> layout;
  std::optional<RankPaths> rank_paths;  ///< Files named by the map that is undone.
  /// Receive faults in objects of other checkpoints whose tensors `reader` computes with. Its readers refer to them.
  std::vector<std::shared_ptr<ObjectFaults>> faults_of_operands{};
  std::unique_ptr<Reader> reader;
  std::vector<const ComputedReader*> computed{};  ///< Parts of `reader` that compute tensors: see ComputedReaders.
  bool opaque_globals = false;                    ///< The value of OpenOptions when it was opened.
  bool is_mapped = false;                         ///< A model map was undone.

  const Catalog& catalog() const { return reader->catalog(); }
};

/// Receives a line for a log. May be empty.
using OnStep = std::function<void(const std::string& line)>;

/// Options of open_source that its caller decides, rather than the user.
struct SourceOptions {
  bool metadata_only = false;  ///< See OpenOptions.
  Salvage* salvage = nullptr;  ///< For repair: receives the unreadable parts, which without_losses drops.
  bool keeps_map = false;      ///< Do not undo SourceRequest::map, and do not merge SourceRequest::adapters.
  /// With SourceRequest::map: names that it does not select need no rule in the map. Null: each name needs one.
  /// If no tensor is computed or mapped, and `findings` is an ObjectFaults: tensors that it does not select may have
  /// gaps and overlaps.
  const SelectionOptions* selection = nullptr;
  const Source* like = nullptr;               ///< See OpenOptions.
  Findings* findings = &throwing_findings();  ///< See OpenOptions.
  /// Receives the reader after dequantization, before weights with losses are dropped, and after merging adapters. May
  /// be empty.
  std::function<void(const ComputedReader& reader)> on_computed{};
  OnStep on_step{}, on_detail{};  ///< For the steps of opening, and for their details.
  OnStep on_note{};               ///< For facts that the user should see.
};

/// \throws Error kNotFound  a path does not exist. The error describes placeholders of files that were never fetched,
///   and names of models on the Hugging Face Hub.
void check_exists(const SourceStore& store, const std::vector<std::string>& paths);

/// Opens the checkpoint of `request.paths`. Reads only metadata. SourceRequest::ranks_expected is for the format; the
/// caller checks the number in the catalog.
/// \throws Error  see check_exists, detect_format, Format::open, dequantized, undo_map and undo_map_and_merge
OpenSource open_source(const SourcePlace& place, const SourceRequest& request, const SourceOptions& options = {});

/// Reads a layout document. \throws Error kNotFound, kInvalidArgument, kUnsupported
MeshLayout read_layout(const SourceStore& store, const std::string& path);

/// Facts about quantization from the JSON files in the folder of a source, or else in `reference` (empty: none).
QuantizationFacts facts_beside(const SourceStore& store, const OpenSource& source, const std::string& reference = {});

}  // namespace shard

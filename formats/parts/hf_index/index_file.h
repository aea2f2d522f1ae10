/// \file
/// Hugging Face's index of a sharded checkpoint: `{"metadata": {...}, "weight_map": {"<tensor>": "<file>"}}`. It is
/// found, read and written by the same rules for safetensors and torch checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parts/json/json_cursor.h"
#include "libshard/core/arena.h"
#include "libshard/io/source_store.h"

namespace shard::hf_index {

/// True for a visible name that ends in `suffix` (".safetensors.index.json", ".bin.index.json"), or for that of a
/// variant (model.safetensors.index.fp16.json).
bool is_index_name(std::string_view name, std::string_view suffix);

/// The index among a folder's `names`, or empty. If there are several, the one called `usual`, or the only one without
/// a variant (model.fp16.safetensors.index.json and model.safetensors.index.fp16.json have one).
/// \throws Error kCorruption  there are several, and neither rule decides; the error suggests each.
std::string choose_index(const std::string& folder, const std::vector<std::string>& names, std::string_view suffix,
                         std::string_view usual);

/// True if the file's start is that of an index whose files end in `data_suffix` (".safetensors", ".bin").
bool is_index_file(const RandomReader& file, std::string_view data_suffix);

// Only weight_map is read. `total_size` is a number of bytes, or twice the number of parameters: writers differ.

struct WeightMapEntry {
  std::string_view name;
  std::uint32_t file = 0;   ///< Index into WeightMap::files.
  bool seen = false;        ///< Set by the caller: the file contains the tensor.
  std::uint8_t others = 0;  ///< Set by the caller: the number of other files that contain it, at most 2.
};

struct WeightMap {
  std::vector<WeightMapEntry> entries;  ///< By name, without duplicates.
  std::vector<std::string> files;       ///< Sorted; each one a safe path.
  /// Stores the names; the file's bytes are charged to its budget.
  std::shared_ptr<Arena> arena = std::make_shared<Arena>(std::make_shared<Budget>());

  /// The entry with that name, or null.
  WeightMapEntry* find(std::string_view name);
};

/// Whether `name` is a path that cannot leave the folder of an index: "part.h5", "sub/part.h5".
bool is_safe_path(std::string_view name);

/// The reason why an index may not refer to any other path, for messages.
inline constexpr std::string_view kMustBeBelow = "files must be in the folder of the index, or in folders below it";

/// Walks over an index. Calls `read_map` at the start of its weight_map, which must consume it.
/// \throws Error kCorruption  it is not an object with one weight_map.
void walk_index(JsonCursor& json, const std::function<void()>& read_map);

/// \throws Error kCorruption (kind bad_header, duplicate_name)  a different document, a repeated name, a file outside
///   the index's folder.
WeightMap read_weight_map(const RandomReader& file);

/// One line of the index: a tensor and its file.
struct IndexEntry {
  std::string_view tensor, file;
};

/// The index's text, as Hugging Face's own libraries write it. \throws Error kUnsupported  a name is not valid UTF-8.
std::string dump_index(std::int64_t total_bytes, std::span<const IndexEntry> entries);

}  // namespace shard::hf_index

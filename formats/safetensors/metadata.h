/// \file
/// The `__metadata__` of a safetensors file: notes of its writer, and torch's DCP_SHARDING_INFO, which records the
/// offset of each tensor of the file in the whole tensor.
///
///     "DCP_SHARDING_INFO": "{\"w\": {\"saved_offsets\": [2, 0]}}"
///     "DCP_SHARDING_INFO": "{\"w.__dcp_shard_0\": {\"logical_fqn\": \"w\", \"saved_offsets\": [2, 0],
///     \"global_shape\": [9, 2]}}"
///
/// A writer that stores several pieces of one tensor in a file uses the second form, with a separate key per piece.
///
/// Source: torch 2.15, torch/distributed/checkpoint/_hf_utils.py, filesystem.py; pytorch/pytorch pull request 189945.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "libshard/catalog/catalog.h"
#include "libshard/io/source_store.h"

namespace shard::safetensors {

using MetadataMap = std::map<std::string, std::string>;

inline constexpr const char* kShardingInfoKey = "DCP_SHARDING_INFO";
inline constexpr const char* kDcpVersionKey = "DCP_VERSION";
/// shardctl's own note in files of ranks: the number of ranks.
inline constexpr const char* kWorldSizeKey = "shardctl.world_size";

/// Adds one file's metadata to the catalog's; a key whose value differs between files is a warning.
void merge_metadata(Catalog& catalog, const MetadataMap& metadata, const std::string& file);

/// True if `file` starts as a safetensors file whose first 4 KiB contain DCP_SHARDING_INFO. Every known writer puts
/// `__metadata__` first, and this key among its first keys.
bool names_sharding_info(const RandomReader& file);

/// The entry of one tensor of the header in DCP_SHARDING_INFO.
struct ShardingEntry {
  std::string_view key;  ///< The tensor's name in the header.
  /// The whole tensor's name: logical_fqn, or `key` if that is missing.
  std::string_view tensor;
  std::span<const std::int64_t> offsets;                     ///< The offset of the first element in the whole tensor.
  std::optional<std::span<const std::int64_t>> whole_shape;  ///< global_shape.
};
/// The views are valid only during the call that receives them.
using OnSharding = std::function<void(const ShardingEntry& entry)>;
using OnDims = std::function<void(std::string_view name, std::span<const std::int64_t> dims)>;

/// Reads the text of DCP_SHARDING_INFO and calls `on_entry` for each key, in the order of the text. The caller must
/// detect repeated keys.
/// \throws Error kCorruption (kind bad_header)  a different document, an entry without saved_offsets, a repeated field,
///   more than kMaxDims numbers, numbers that are negative or exceed 63 bits.
/// \throws Error kUnsupported  any field other than these three, because it may change their meaning.
/// Cost: one pass, no memory besides the text.
void parse_sharding_info(const std::string& text, const std::string& file, const OnSharding& on_entry);

/// Reads {"name": [d0, d1, ...]} in the same way. `key` is the metadata's key, for messages.
void parse_dims_by_name(const std::string& text, const std::string& key, const std::string& file,
                        const OnDims& on_dims);

}  // namespace shard::safetensors

/// \file
/// The `__metadata__` of a safetensors file: notes of its maker, and torch's DCP_SHARDING_INFO, which says where each
/// tensor of the file begins in the whole tensor.
///
///     "DCP_SHARDING_INFO": "{\"w\": {\"saved_offsets\": [2, 0]}}"
///     "DCP_SHARDING_INFO": "{\"w.__dcp_shard_0\": {\"logical_fqn\": \"w\", \"saved_offsets\": [2, 0],
///     \"global_shape\": [9, 2]}}"
///
/// The second form is that of a writer that puts several pieces of one tensor into a file, each under a key of its own.
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

/// Adds one file's metadata to the catalog's; a key whose value differs between files is a warning.
void merge_metadata(Catalog& catalog, const MetadataMap& metadata, const std::string& file);

/// True when `file` begins as a safetensors file whose first 4 KiB name DCP_SHARDING_INFO. Every known writer puts
/// `__metadata__` first and that key among the first in it.
bool names_sharding_info(const RandomReader& file);

/// What DCP_SHARDING_INFO says of one tensor of the file's header.
struct ShardingEntry {
  std::string_view key;                                      ///< The tensor's name in the header.
  std::string_view tensor;                                   ///< The whole tensor's name: logical_fqn, else `key`.
  std::span<const std::int64_t> offsets;                     ///< Where the first element lies in the whole tensor.
  std::optional<std::span<const std::int64_t>> whole_shape;  ///< global_shape.
};
/// Views are valid during the call that hands them out.
using OnSharding = std::function<void(const ShardingEntry& entry)>;
using OnDims = std::function<void(std::string_view name, std::span<const std::int64_t> dims)>;

/// Reads the text of DCP_SHARDING_INFO and calls `on_entry` for each key, in its order. Doubled keys are for the caller
/// to see.
/// \throws Error kCorruption (kind bad_header)  not such a document, an entry without saved_offsets, a field twice,
///   more than kMaxDims numbers, numbers that are negative or past 63 bits.
/// \throws Error kUnsupported  a field that is none of the three: it may change what the others mean.
/// Cost: one pass, no memory beside the text.
void parse_sharding_info(const std::string& text, const std::string& file, const OnSharding& on_entry);

/// Reads {"name": [d0, d1, ...]}, the same way. `key` is the metadata's key, for messages.
void parse_dims_by_name(const std::string& text, const std::string& key, const std::string& file,
                        const OnDims& on_dims);

}  // namespace shard::safetensors

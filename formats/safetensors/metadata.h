/// \file
/// What stands in a safetensors file's `__metadata__` besides notes of its maker: torch's distributed checkpoints say
/// there where each tensor of the file begins in its whole.
///
///     "DCP_SHARDING_INFO": "{\"w\": {\"saved_offsets\": [2, 0]}}"
///
/// Source: torch 2.15, torch/distributed/checkpoint/_hf_utils.py, filesystem.py.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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

/// Where a tensor's first element lies in the whole tensor. Views are valid during the call that hands them out.
using OnOffsets = std::function<void(std::string_view name, std::span<const std::int64_t> offsets)>;

/// Reads the text of DCP_SHARDING_INFO and calls `on_offsets` for each name, in its order. Unknown fields are skipped;
/// doubled names are for the caller to see.
/// \throws Error kCorruption (kind bad_header)  not such a document, no saved_offsets or two, more than kMaxDims of
///   them, numbers that are negative or past 63 bits.
/// Cost: one pass, no memory beside the text.
void parse_sharding_info(const std::string& text, const std::string& file, const OnOffsets& on_offsets);

/// Reads {"name": [d0, d1, ...]}, the same way. `key` is the metadata's key, for messages.
void parse_dims_by_name(const std::string& text, const std::string& key, const std::string& file,
                        const OnOffsets& on_dims);

}  // namespace shard::safetensors

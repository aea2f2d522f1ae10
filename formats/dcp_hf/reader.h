/// \file
/// Recognises and opens dcp-hf checkpoints. README.md in this folder documents bytes, limits and refusals.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::dcp_hf {

/// True if a header contains DCP_SHARDING_INFO and the folder has no index, which would list whole tensors.
bool detect(const Source& source);

/// Opens a folder of shards, or shards that are named one by one.
/// \throws Error kCorruption  the errors of parse_header, parse_sharding_info and find_shard_files; no
///   DCP_SHARDING_INFO; pieces leave gaps, overlap or contradict one another; the files are from two saves (kind
///   mixed_save, world_size_mismatch).
/// \throws Error kNotFound (kind missing_file)  the file of a rank is missing, as far as the names, the files' content
///   or OpenOptions::ranks_expected show.
/// \throws Error kUnsupported  a DCP_VERSION other than 1.x.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

}  // namespace shard::dcp_hf

/// \file
/// Recognises and opens dcp-hf checkpoints. Bytes, limits and refusals: README.md beside this file.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::dcp_hf {

/// DCP_SHARDING_INFO in a header, and no index that says that the tensors are whole.
bool detect(const Source& source);

/// Opens a folder of shards, or shards named one by one.
/// \throws Error kCorruption  what parse_header, parse_sharding_info and find_shard_files refuse; no DCP_SHARDING_INFO;
///   pieces that leave gaps, overlap or contradict one another; files of two saves (kind mixed_save,
///   world_size_mismatch).
/// \throws Error kNotFound (kind missing_file)  a rank's file is not there, as far as the names, the files themselves
///   or OpenOptions::ranks_expected tell.
/// \throws Error kUnsupported  a DCP_VERSION that is not 1.x.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

}  // namespace shard::dcp_hf

/// \file
/// The dcp-hf format: its entry in the registry, and the functions behind it. README.md in this folder documents
/// bytes, limits and refusals.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard {

extern const Format kDcpHfFormat;

namespace dcp_hf {

// Recognises and opens dcp-hf checkpoints.

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

// The dcp-hf Writer: a folder of shards that torch's HuggingFaceStorageReader loads.

/// Makes the writer. `place` sets target.metadata["format"] to "pt" if it is missing, and "shardctl.aliases" if names
/// share bytes in the source. \throws Error kUnsupported (from place)  tensors that safetensors cannot store; several
/// boxes of one tensor on one rank.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace dcp_hf

}  // namespace shard

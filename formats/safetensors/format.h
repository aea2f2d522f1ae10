/// \file
/// The safetensors format: its entry in the registry, and the functions behind it. README.md in this folder
/// documents bytes, limits and refusals.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard {

extern const Format kSafetensorsFormat;

namespace safetensors {

// Recognises and opens safetensors checkpoints.

/// True for safetensors files of whole tensors, and for an index of such files: see Format::detect.
bool detect(const Source& source);

/// Opens one file, several files, a folder with or without an index, or an index.
/// \throws Error kCorruption, kNotFound, kUnsupported  see parse_header and read_weight_map. Also kCorruption of kind
///   index_mismatch (the index lists a tensor that its file lacks) and duplicate_name (a tensor occurs twice), and
///   kUnsupported for shards of dcp-hf.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

// The safetensors Writer: one file, or a folder in Hugging Face's layout.

/// Makes the writer. `place` sets target.metadata["format"] to "pt" if it is missing, and "shardctl.aliases" if names
/// share bytes in the source. \throws Error kUnsupported (from place)  a dtype that safetensors lacks, a name that is
/// not UTF-8 or is "__metadata__", a header over 100,000,000 bytes; kInvalidArgument  several files for one file.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace safetensors

}  // namespace shard

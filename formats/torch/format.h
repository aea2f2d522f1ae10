/// \file
/// The torch format: its entry in the registry, and the functions behind it. README.md in this folder documents
/// bytes, limits and refusals.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard {

extern const Format kTorchFormat;

namespace torch_save {

// The torch Writer: torch.save zips as torch 2.11 writes them.

/// Writes one file or a folder: `pytorch_model.bin`, or `pytorch_model-00001-of-00002.bin` and so on with an index.
///
/// Files of the target that have names keep them. Each contains a flat dict of its tensors. No index is written.
///
/// A single file contains the target's tree. Several files contain flat dicts, which Hugging Face's loaders require;
/// the first one contains the objects. `place` throws kUnsupported for objects with hidden tensors (see HiddenTensors),
/// for dtypes that torch lacks, and, with several files, for two tensors of one name.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace torch_save

}  // namespace shard

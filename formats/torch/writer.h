/// \file
/// The torch Writer: torch.save zips as torch 2.11 writes them. Bytes and limits: README.md beside this file.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard::torch_save {

/// One file, or a folder: `pytorch_model.bin`, or `pytorch_model-00001-of-00002.bin` and so on with an index.
///
/// Files of the target that have names keep them: each holds a flat dict of its tensors, and there is no index.
///
/// One file holds the target's tree. Several hold flat dicts, as Hugging Face's loaders want them; objects are in the
/// first. `place` throws kUnsupported for objects in which tensors are hidden (see HiddenTensors), for dtypes that
/// torch has not, and in several files for two tensors of one name.
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace shard::torch_save

/// \file
/// Opens dcp checkpoints. What is read when: metadata, the files' sizes, and of bytes items whether tensors are in them
/// (then they are loaded) at open; the front and the end of items in `locate`; other bytes items in `load_objects`.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::dcp {

/// A folder with `.metadata`, or one that torch.distributed.checkpoint wrote and that lacks it.
bool detect(const Source& source);

/// \throws Error kNotFound     metadata, a rank's metadata or a file that it names is absent.
/// \throws Error kCorruption   see parse_metadata and merge_ranks; a file is shorter than its items say; items lie over
///   each other; chunks do not cover a tensor.
/// \throws Error kUnsupported  see parse_metadata.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

}  // namespace shard::dcp

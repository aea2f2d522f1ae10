/// \file
/// Opens checkpoints of Megatron-Core's dist_checkpointing (torch_dist): folders of dcp's files and further ones.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::megatron_dist {

/// True for a folder whose metadata.json names torch_dist, and for a parent of such a folder: see find_checkpoint.
bool detect(const Source& source);

/// \throws Error kNotFound  the source does not contain a checkpoint. Other errors: as dcp::open, which reads the
///   folder.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

}  // namespace shard::megatron_dist

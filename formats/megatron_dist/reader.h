/// \file
/// Opens checkpoints of Megatron-core's dist_checkpointing (torch_dist), which are folders of dcp's files and more.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::megatron_dist {

/// A folder whose metadata.json names torch_dist, or one that holds such a folder: see find_checkpoint.
bool detect(const Source& source);

/// \throws Error kNotFound  the source does not hold a checkpoint. Others: as dcp::open, of which this is a form.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

}  // namespace shard::megatron_dist

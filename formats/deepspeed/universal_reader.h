/// \file
/// Opens a universal checkpoint of DeepSpeed: a folder of each parameter with its weights and states, whole.
#pragma once

#include <memory>

#include "formats/format.h"

namespace shard::deepspeed {

/// A folder that holds zero/optimizer_state.pt, or whose file `latest_universal` names one. By names alone.
bool detect_universal(const Source& source);

/// Reads the pickles of all files, not their tensors. \throws Error  as open (reader.h)
std::unique_ptr<Reader> open_universal(const Source& source, const OpenOptions& options);

}  // namespace shard::deepspeed

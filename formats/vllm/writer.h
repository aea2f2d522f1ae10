/// \file
/// The vllm Writer: one safetensors file for each part of each rank. README.md in this folder documents it.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard::vllm {

/// \pre each file of the target has a rank, and contains whole tensors
/// \throws Error kUnsupported (from place)  as safetensors
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace shard::vllm

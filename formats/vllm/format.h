/// \file
/// The vllm format: its entry in the registry, and the functions behind it. README.md in this folder documents
/// bytes, limits and refusals.
#pragma once

#include <memory>

#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard {

extern const Format kVllmFormat;

namespace vllm {

// The vllm Writer: one safetensors file for each part of each rank.

/// \pre each file of the target has a rank, and contains whole tensors
/// \throws Error kUnsupported (from place)  as safetensors
std::unique_ptr<Writer> make_writer(const WriteOptions& options);

}  // namespace vllm

}  // namespace shard

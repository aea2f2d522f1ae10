/// \file
/// What only the bytes of a mapped source show: that replicas are equal, and padding is zero. Inside libshard/map only.
#pragma once

#include <string_view>

#include "libshard/checkpoint/reader.h"

namespace shard {

/// Compares chunks of one box with the first of them. \pre located
/// \throws Error kCorruption (kind replica_mismatch)  they differ
void check_replicas(const Reader& reader, const Tensor& tensor);

/// Reads a chunk of what is stored under `name`. \pre located
/// \throws Error kCorruption (kind shape_mismatch)  not all is zero
void check_padding(const Reader& reader, std::string_view name, const Chunk& chunk);

}  // namespace shard

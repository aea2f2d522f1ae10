/// \file
/// What only the bytes of a mapped source show: that replicas are equal, and padding is zero. Inside libshard/map only.
#pragma once

#include "libshard/checkpoint/reader.h"

namespace shard {

/// Compares chunks of one box with the first of them. \pre located
/// \throws Error kCorruption (kind replica_mismatch)  they differ
void check_replicas(const Reader& reader, const Tensor& tensor);

/// Reads a stored tensor from position `begin` of dimension `dim` on. \pre located
/// \throws Error kCorruption (kind shape_mismatch)  not all is zero
void check_padding(const Reader& reader, const Tensor& tensor, int dim, std::int64_t begin);

}  // namespace shard

/// \file
/// A pass over the elements of many tensors, by the threads of all ranks: what it may use, and which tensors are a
/// rank's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "libshard/ranks/group.h"

namespace shard {

struct PassOptions {
  int threads = 1;
  std::int64_t max_memory_bytes = 64 << 20;  ///< Limit on buffers for reading.
};

/// The range [first, second) of the tensors, `bytes` long each, that this rank handles: contiguous, about equal by
/// bytes. Collective. \throws Error kInvalidArgument  the ranks see different tensors
std::pair<std::size_t, std::size_t> own_share(Group& group, std::span<const std::int64_t> bytes);

}  // namespace shard

/// \file A pass over the elements of many tensors by the threads of all ranks: its resources, and each rank's share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "libshard/ranks/group.h"

namespace shard {

struct PassOptions {
  int threads = 1;
  std::int64_t max_memory_bytes = 64 << 20;  ///< The limit on buffers for reading.
};

/// The range [first, second) of tensors that this rank handles, given the tensors' sizes `bytes`. The ranges are
/// contiguous and have about equal bytes. Collective.
/// \throws Error kInvalidArgument  the ranks see different tensors
std::pair<std::size_t, std::size_t> own_share(Group& group, std::span<const std::int64_t> bytes);

}  // namespace shard

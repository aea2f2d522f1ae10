/// \file
/// Runs the bodies of kernels on the host, one thread after another.
#pragma once

#include <memory>

#include "libshard/device/kernels/cast_kernel.h"
#include "libshard/device/kernels/copy_kernels.h"
#include "libshard/device/kernels/copy_shape.h"

namespace shard::testing {

struct HostGrid {
  template <class Body>
  void flat(const Body& body, std::int64_t blocks) const {
    for (std::int64_t block = 0; block < blocks; ++block) {
      for (int thread = 0; thread < kernels::kThreads; ++thread) body(block, thread);
    }
  }
  /// All threads of a block fill its tile before any empties it, because a kernel synchronises between the two.
  template <class Body>
  void tiled(const Body& body, std::int64_t blocks) const {
    const auto tile = std::make_unique<typename Body::Tile>();
    for (std::int64_t block = 0; block < blocks; ++block) {
      for (int thread = 0; thread < kernels::kThreads; ++thread) body.fill(block, thread, *tile);
      for (int thread = 0; thread < kernels::kThreads; ++thread) body.empty(block, thread, *tile);
    }
  }
};

}  // namespace shard::testing

/// \file
/// The interface of a plug-in that makes Groups: one C entry. libshard_mpi.so, libshard_torch.so (Gloo),
/// libshard_nccl.so.
///
/// Plug-ins lie beside libshard.so and are opened when a group is asked for, so that a job of one process loads no MPI
/// and no torch. A plug-in translates its library's exceptions to shard::Error.
#pragma once

#include <chrono>
#include <memory>

#include "libshard/ranks/group.h"
#include "libshard/ranks/launch.h"

namespace shard {

struct GroupRequest {
  Launch launch;
  std::chrono::milliseconds timeout{300'000};
};

/// The name of the entry; its number changes with Group, Launch or GroupRequest.
inline constexpr char kPluginEntry[] = "shard_make_group_1";
/// Forms the group; all ranks call it. Ownership: the caller deletes it.
using MakeGroup = Group* (*)(const GroupRequest& request);

}  // namespace shard

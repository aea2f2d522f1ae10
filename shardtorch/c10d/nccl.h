/// \file
/// libshard_nccl.so's second entry: groups for a program with its own store.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "libshard/ranks/group.h"

namespace shard {

/// The name of the entry. Its number changes with the type below or Group.
inline constexpr char kNcclEntry[] = "shard_make_nccl_group_1";
/// Creates the group of the ranks that connect through `store`, on the calling thread's current CUDA device. All of
/// them call it. Ownership: the caller deletes it. \throws Error kPeer  a rank does not connect, or there is no GPU.
using MakeNcclGroup = Group* (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                 std::chrono::milliseconds timeout);

}  // namespace shard

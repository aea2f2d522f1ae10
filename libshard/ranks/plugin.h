/// \file The interface of a plug-in that creates Groups: one C entry. libshard_mpi.so, libshard_gloo.so,
///   libshard_nccl.so.
///
/// A plug-in is opened when a group is requested, so that a job of one process loads neither MPI nor torch. It may use
/// a different C++ library from the program's (libshard/ranks/c_group.h). It translates its library's exceptions to
/// shard::Error.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "libshard/ranks/c_group.h"
#include "libshard/ranks/launch.h"

namespace shard {

struct GroupRequest {
  Launch launch;
  std::chrono::milliseconds timeout{300'000};
};

/// The request as bytes (wire.h), the form in which it is passed to the plug-in.
Bytes to_bytes(const GroupRequest& request);
/// \throws Error kPeer  the bytes are not a request
GroupRequest to_group_request(std::span<const std::byte> bytes);

/// The name of the entry. Its number changes with CGroup, ErrorSink, and the bytes of a request and of an error.
inline constexpr char kPluginEntry[] = "shard_make_group_2";
/// Forms the group. All ranks call it. Returns false on errors. Ownership: the caller's.
using MakeGroup = bool (*)(ConstBytes request, CGroup* made, const ErrorSink* errors);

/// The implementation of a plug-in's entry: creates the group with `make` and exports it.
bool make_c_group(ConstBytes request, CGroup* made, const ErrorSink* errors,
                  const std::function<std::unique_ptr<Group>(const GroupRequest& request)>& make) noexcept;

}  // namespace shard

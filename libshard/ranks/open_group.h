/// \file Chooses the backend for a launch, opens its plug-in and forms the group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libshard/ranks/plugin.h"

namespace shard {

/// The available backends among "mpi", "gloo" and "nccl": those whose plug-in is next to libshard.so and whose
/// libraries are installed. Opens them. Cost: up to 0.5 s.
std::vector<std::string> backends_here();

/// The address of `entry` in a backend's plug-in, which it opens. It stays open.
/// \throws Error kUnsupported  the plug-in is not available, or has no such entry.
void* plugin_entry(const std::string& backend, const char* entry);

/// Forms the group of a job of several processes. Backend "auto" is mpi under Open MPI if that plug-in is built,
/// otherwise gloo.
/// \pre request.launch.size > 1
/// \throws Error kUnsupported  the backend is not available or lacks devices; the message names the package to install;
///     kPeer  the ranks cannot reach one another within the timeout.
std::unique_ptr<Group> open_group(const GroupRequest& request, const std::string& backend);

}  // namespace shard

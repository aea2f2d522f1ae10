/// \file Chooses the backend for a launch, opens its plug-in and forms the group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libshard/ranks/launch.h"
#include "libshard/ranks/plugin.h"

namespace shard {

/// A LibTorch in a Python environment, for a plug-in that was built on a different machine and for which the dynamic
/// loader finds none.
struct FoundLibtorch {
  std::string folder;   ///< For example PREFIX/lib/python3.N/site-packages/torch/lib, or with dist-packages.
  std::string version;  ///< The version of its package, without the part after '+'. Empty if there is no package.
};

/// Finds LibTorch in these environments, in this order and without duplicates: the one whose bin is `program_folder`,
/// $VIRTUAL_ENV, $CONDA_PREFIX, and those whose bin is in $PATH. Reads only the names of files.
std::vector<FoundLibtorch> find_libtorch(const std::string& program_folder, const Environment& environment);

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

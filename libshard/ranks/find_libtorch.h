/// \file
/// Where Python environments keep LibTorch, for a plug-in that the dynamic loader finds none for: one that was made on
/// another machine.
#pragma once

#include <string>
#include <vector>

#include "libshard/ranks/launch.h"

namespace shard {

struct FoundLibtorch {
  std::string folder;   ///< PREFIX/lib/python3.N/site-packages/torch/lib, or with dist-packages
  std::string version;  ///< As its package says, without the part after '+'; empty where no package is there.
};

/// The LibTorch of the environment that `program_folder` is the bin of, of $VIRTUAL_ENV, of $CONDA_PREFIX, and of those
/// that the folders of $PATH are the bin of; in this order, each once. Reads the names of files alone.
std::vector<FoundLibtorch> find_libtorch(const std::string& program_folder, const Environment& environment);

}  // namespace shard

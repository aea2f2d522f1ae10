/// \file Finds LibTorch in Python environments, for a plug-in that was built on a different machine and for which the
///   dynamic loader finds none.
#pragma once

#include <string>
#include <vector>

#include "libshard/ranks/launch.h"

namespace shard {

struct FoundLibtorch {
  std::string folder;   ///< For example PREFIX/lib/python3.N/site-packages/torch/lib, or with dist-packages.
  std::string version;  ///< The version of its package, without the part after '+'. Empty if there is no package.
};

/// Finds LibTorch in these environments, in this order and without duplicates: the one whose bin is `program_folder`,
/// $VIRTUAL_ENV, $CONDA_PREFIX, and those whose bin is in $PATH. Reads only the names of files.
std::vector<FoundLibtorch> find_libtorch(const std::string& program_folder, const Environment& environment);

}  // namespace shard

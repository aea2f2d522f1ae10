/// \file
/// Versions of shardctl, of the compiler, and of the libraries that it runs with.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace shard::app {

std::string own_version();  ///< "0.2.0"
std::string compiler();     ///< "g++ 12.2.0, C++20"
/// Names and versions. A shared library has the version that was loaded. Plug-ins (libhdf5) are included if they are
/// installed; they are opened for this.
std::vector<std::pair<std::string, std::string>> library_versions();

}  // namespace shard::app

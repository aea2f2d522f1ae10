/// \file
/// LibTorch's version is its binary interface: code for one version does not run with another.
#pragma once

#include <cstdint>
#include <string_view>

namespace shard {

/// Compares the LibTorch that the plug-in of `backend` was built for with the one that is loaded; numbers as
/// TORCH_ABI_VERSION. \throws Error kUnsupported  they differ; names both.
void check_libtorch(std::string_view backend, std::uint64_t built_for, std::uint64_t loaded);
/// The versions of this code and of this process.
void check_libtorch(std::string_view backend);

}  // namespace shard

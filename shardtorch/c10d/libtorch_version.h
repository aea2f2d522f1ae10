/// \file
/// The version of LibTorch determines its binary interface. Code for one version does not run with another.
#pragma once

#include <cstdint>
#include <string_view>

namespace shard {

/// Compares the LibTorch version for which the plug-in of `backend` was built with the loaded one, as numbers of the
/// form TORCH_ABI_VERSION. \throws Error kUnsupported  they differ; names both.
void check_libtorch(std::string_view backend, std::uint64_t built_for, std::uint64_t loaded);
/// Compares the version of this code with that of this process. \throws  as above
void check_libtorch(std::string_view backend);

}  // namespace shard

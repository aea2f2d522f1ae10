#include "shardtorch/c10d/libtorch_version.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/version.h>

#include <string>

#include "libshard/core/error.h"

namespace shard {

namespace {

std::string version_text(std::uint64_t abi) {
  const auto part = [abi](int shift) { return std::to_string(abi >> shift & 0xFF); };
  return part(56) + "." + part(48) + "." + part(40);
}

}  // namespace

void check_libtorch(std::string_view backend, std::uint64_t built_for, std::uint64_t loaded) {
  if (built_for == loaded) return;
  throw Error(ErrorCode::kUnsupported, "backend '" + std::string(backend) + "' is not available")
      .because("its plug-in was built for LibTorch " + version_text(built_for) + ", but LibTorch " +
               version_text(loaded) + " is loaded")
      .hint("install torch==" + version_text(built_for) + ", or build the plug-in with the other one");
}

void check_libtorch(std::string_view backend) { check_libtorch(backend, TORCH_ABI_VERSION, aoti_torch_abi_version()); }

}  // namespace shard

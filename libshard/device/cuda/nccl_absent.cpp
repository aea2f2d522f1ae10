// For builds on machines without NCCL's header.
#include "libshard/core/error.h"
#include "libshard/device/cuda/cuda_device.h"

namespace shard::cuda {

std::string nccl_version() { return {}; }

std::unique_ptr<DeviceLink> connect_by_nccl(const DeviceInfo&, Group&, std::chrono::milliseconds) {
  throw Error(ErrorCode::kUnsupported, "cannot connect GPUs: this build has no NCCL")
      .hint("build shardctl where NCCL's header nccl.h is");
}

}  // namespace shard::cuda

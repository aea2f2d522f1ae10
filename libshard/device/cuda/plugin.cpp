// libshard_cuda.so's entry.
#include <cuda_runtime_api.h>

#include "libshard/core/error.h"
#include "libshard/device/cuda/cuda_device.h"
#include "libshard/device/device_system.h"

namespace shard::cuda {

namespace {

DeviceSystem describe() {
  DeviceSystem system;
  cudaDriverGetVersion(&system.driver);  // 0 where there is none.
  system.runtime = CUDART_VERSION;
  system.nccl = nccl_version();
  system.problem = list_devices(system.devices);
  if (system.driver == 0) system.problem = "no NVIDIA driver was found";  // CUDA calls that a driver that is too old.
  return system;
}

std::unique_ptr<Device> open(int number) {
  std::vector<DeviceInfo> devices;
  const std::string problem = list_devices(devices);
  for (const DeviceInfo& info : devices) {
    if (info.number == number) return open_device(info);
  }
  throw Error(ErrorCode::kUnsupported, "cannot use a GPU: it is gone").because(problem);
}

constexpr DevicePlugin kPlugin{describe, open};

}  // namespace

}  // namespace shard::cuda

extern "C" const shard::DevicePlugin* shard_devices_1() { return &shard::cuda::kPlugin; }

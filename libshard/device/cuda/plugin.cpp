// libshard_cuda.so's entry.
#include "libshard/device/plugin.h"

#include <cuda_runtime_api.h>

#include "libshard/core/error.h"
#include "libshard/device/cuda/cuda_device.h"

namespace shard::cuda {

namespace {

DeviceSystem describe() {
  DeviceSystem system;
  cudaDriverGetVersion(&system.driver);  // 0 if there is no driver.
  system.runtime = CUDART_VERSION;
  system.nccl = nccl_version();
  system.problem = list_devices(system.devices);
  // CUDA reports a missing driver as one that is too old.
  if (system.driver == 0) system.problem = "no NVIDIA driver was found";
  return system;
}

std::unique_ptr<Device> open(int number) {
  std::vector<DeviceInfo> devices;
  const std::string problem = list_devices(devices);
  for (const DeviceInfo& info : devices) {
    if (info.number == number) return open_device(info);
  }
  throw Error(ErrorCode::kUnsupported, "cannot use the GPU: it is no longer available").because(problem);
}

constexpr DevicePlugin kPlugin{
    [](const ByteSink* system, const ErrorSink* errors) { return put_devices(system, errors, describe); },
    [](int number, CDevice* made, const ErrorSink* errors) {
      return open_c_device(made, errors, [number] { return open(number); });
    }};

}  // namespace

}  // namespace shard::cuda

extern "C" const shard::DevicePlugin* shard_devices_3() { return &shard::cuda::kPlugin; }

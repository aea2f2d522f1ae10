/// \file A CUDA device, and the helpers that its parts share. Inside libshard/device/cuda only.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "libshard/device/device.h"

namespace shard::cuda {

/// Checks a result. \throws Error kResource  CUDA failed: "cannot WHAT on device N (name)".
void check(cudaError_t status, const DeviceInfo& device, const char* what);

/// A separate CUDA stream, for work that DeviceStream does not offer.
class Stream {
 public:
  explicit Stream(const DeviceInfo& device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Makes the device the current one of the calling thread.
void use(const DeviceInfo& device);

/// The devices that CUDA lists. \returns why there are none, or an empty text.
std::string list_devices(std::vector<DeviceInfo>& devices);

std::unique_ptr<Device> open_device(const DeviceInfo& info);

/// NCCL's version, or an empty text if it cannot be loaded.
std::string nccl_version();
/// Does the same as Device::connect. Ownership: `device` outlives the link.
std::unique_ptr<DeviceLink> connect_by_nccl(const DeviceInfo& device, Group& group, std::chrono::milliseconds timeout);

}  // namespace shard::cuda

/// \file The devices of this machine, and the choice of one of them for a rank. The plug-in libshard_cuda.so, next to
///   libshard.so, lists them. It is opened on demand, so that a job without a device loads no CUDA.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libshard/device/device.h"

namespace shard {

/// CUDA's version numbers: 13010 is 13.1. 0: there is none.
using DeviceVersion = int;
/// "13.1".
std::string version_text(DeviceVersion version);

struct DeviceSystem {
  DeviceVersion driver = 0;   ///< The newest runtime that the driver supports.
  DeviceVersion runtime = 0;  ///< The version with which the plug-in was built.
  std::string nccl;           ///< The version found; empty: none.
  std::vector<DeviceInfo> devices;
  std::string problem;  ///< CUDA's message if it finds no device, or the loader's if there is no plug-in.
};

/// The plug-in's description. Without one, a system without devices, and the reason. Throws nothing. Cost: up to 0.5 s.
DeviceSystem describe_devices();

/// The device that a rank requests.
struct DeviceWish {
  std::optional<int> number{};  ///< Empty: the rank's number on its host.
  int local_rank = 0, local_ranks = 1;
};
/// Chooses the number of a rank's device. The ranks of a host each use a different one.
/// \throws Error kUnsupported  no plug-in, driver too old, no such device, fewer devices than ranks on the host (the
///   message has both numbers); kInvalidArgument  one number for several ranks.
int choose_device(const DeviceSystem& system, const DeviceWish& wish);

/// Opens the chosen device. \throws Error  as choose_device; from the plug-in.
std::unique_ptr<Device> open_device(const DeviceWish& wish);

}  // namespace shard

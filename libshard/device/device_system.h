/// \file
/// What devices this machine has, and the choice of one of them for a rank. The plug-in libshard_cuda.so, beside
/// libshard.so, answers; it is opened on demand, so that a job without a device loads no CUDA.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libshard/device/device.h"

namespace shard {

/// CUDA's numbers of versions: 13010 is 13.1. 0: there is none.
using DeviceVersion = int;
/// "13.1".
std::string version_text(DeviceVersion version);

struct DeviceSystem {
  DeviceVersion driver = 0;   ///< The newest runtime that the driver supports.
  DeviceVersion runtime = 0;  ///< The one that the plug-in was built with.
  std::string nccl;           ///< The version found; empty: none.
  std::vector<DeviceInfo> devices;
  std::string problem;  ///< What CUDA says where it finds no device, or the loader where there is no plug-in.
};

/// What the plug-in says; without one a system that has no devices, and why. Throws nothing. Cost: up to 0.5 s.
DeviceSystem describe_devices();

/// Which device a rank asks for.
struct DeviceWish {
  std::optional<int> number{};  ///< None: the rank's number on its host.
  int local_rank = 0, local_ranks = 1;
};
/// The number of the device that a rank gets: ranks of a host have one each.
/// \throws Error kUnsupported  no plug-in, driver too old, no such device, fewer devices than ranks on the host, with
///   both numbers; kInvalidArgument  one number for several ranks.
int choose_device(const DeviceSystem& system, const DeviceWish& wish);

/// Opens it. \throws Error  as choose_device; what the plug-in throws.
std::unique_ptr<Device> open_device(const DeviceWish& wish);

}  // namespace shard

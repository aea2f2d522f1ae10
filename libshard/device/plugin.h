/// \file
/// The interface of a plug-in that brings devices, libshard_cuda.so: one C entry. It may have another C++ library than
/// the program (libshard/ranks/c_group.h).
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "libshard/device/c_device.h"
#include "libshard/device/device_system.h"

namespace shard {

/// As bytes (wire.h), which are what crosses.
Bytes to_bytes(const DeviceSystem& system);
/// \throws Error kPeer  they are not such bytes
DeviceSystem to_device_system(std::span<const std::byte> bytes);

/// Both return false where they put an error.
struct DevicePlugin {
  bool (*describe)(const ByteSink* system, const ErrorSink* errors);
  /// \pre describe() lists it. Ownership: the caller's.
  bool (*open)(int number, CDevice* made, const ErrorSink* errors);
};
/// The name of the entry; its number changes with the structures here and in c_device.h, and the bytes of a
/// DeviceSystem.
inline constexpr char kDevicePluginEntry[] = "shard_devices_2";
using GetDevicePlugin = const DevicePlugin* (*)();

/// What a plug-in's functions do.
bool put_devices(const ByteSink* system, const ErrorSink* errors,
                 const std::function<DeviceSystem()>& describe) noexcept;
bool open_c_device(CDevice* made, const ErrorSink* errors,
                   const std::function<std::unique_ptr<Device>()>& open) noexcept;

}  // namespace shard

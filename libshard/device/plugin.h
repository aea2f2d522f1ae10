/// \file The interface of a plug-in that provides devices, libshard_cuda.so: one C entry. It may use a different C++
///   library from the program's (libshard/ranks/c_group.h).
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "libshard/device/c_device.h"
#include "libshard/device/device_system.h"

namespace shard {

/// The system as bytes (wire.h), the form in which it is passed to the program.
Bytes to_bytes(const DeviceSystem& system);
/// \throws Error kPeer  the bytes are not a DeviceSystem
DeviceSystem to_device_system(std::span<const std::byte> bytes);

/// The functions of a plug-in. Both return false after they put an error.
struct DevicePlugin {
  bool (*describe)(const ByteSink* system, const ErrorSink* errors);
  /// \pre describe() lists it. Ownership: the caller's.
  bool (*open)(int number, CDevice* made, const ErrorSink* errors);
};
/// The name of the entry; its number changes with the structures here and in c_device.h, and the bytes of a
/// DeviceSystem.
inline constexpr char kDevicePluginEntry[] = "shard_devices_2";
using GetDevicePlugin = const DevicePlugin* (*)();

/// The implementation of a plug-in's functions.
bool put_devices(const ByteSink* system, const ErrorSink* errors,
                 const std::function<DeviceSystem()>& describe) noexcept;
bool open_c_device(CDevice* made, const ErrorSink* errors,
                   const std::function<std::unique_ptr<Device>()>& open) noexcept;

}  // namespace shard

/// \file The interface of a plug-in that provides devices, libshard_cuda.so: one C entry. It may use a different C++
///   library from the program's (libshard/ranks/c_group.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "libshard/device/device.h"
#include "libshard/device/device_system.h"
#include "libshard/ranks/c_group.h"

namespace shard {

// A Device as plain C functions, so that a plug-in's device works in a program with a different C++ library
// (libshard/ranks/c_group.h).

struct CBuffer {
  void* buffer;
  std::byte* data;
  std::int64_t size;
};

/// A box of elements between two addresses: DeviceStream::strided_copy's arguments.
struct CBox {
  const std::int64_t* sizes;
  const std::int64_t* from_strides;
  const std::int64_t* to_strides;
  std::size_t dimensions, element_bytes;
};

/// The operations of device.h, with its preconditions, errors and threads. They return false if they fail.
struct DeviceFunctions {
  bool (*free_bytes)(void* device, std::int64_t* bytes, const ErrorSink* errors);
  bool (*allocate)(void* device, std::int64_t bytes, bool is_pinned, CBuffer* made, const ErrorSink* errors);
  bool (*make_stream)(void* device, void** made, const ErrorSink* errors);
  bool (*make_event)(void* device, void** made, const ErrorSink* errors);
  /// The caller keeps the group. The link is destroyed before it.
  bool (*connect)(void* device, CGroup group, std::int64_t milliseconds, void** made, const ErrorSink* errors);

  bool (*synchronize_event)(void* event, const ErrorSink* errors);

  bool (*copy_in)(void* stream, std::byte* to, const std::byte* from, std::int64_t bytes, const ErrorSink* errors);
  bool (*copy_out)(void* stream, std::byte* to, const std::byte* from, std::int64_t bytes, const ErrorSink* errors);
  bool (*strided_copy)(void* stream, CBox box, const std::byte* from, std::byte* to, const ErrorSink* errors);
  bool (*cast)(void* stream, int from, ConstBytes in, int to, MutableBytes out, std::int64_t* overflows,
               const ErrorSink* errors);
  bool (*record)(void* stream, void* event, const ErrorSink* errors);
  bool (*wait)(void* stream, void* event, const ErrorSink* errors);
  bool (*synchronize_stream)(void* stream, const ErrorSink* errors);

  /// `to` and `from` have one piece per rank of the group.
  bool (*exchange)(void* link, const ConstBytes* to, const MutableBytes* from, std::size_t ranks,
                   const ErrorSink* errors);

  void (*destroy_buffer)(void* buffer);
  void (*destroy_event)(void* event);
  void (*destroy_stream)(void* stream);
  void (*destroy_link)(void* link);
  void (*destroy_device)(void* device);
};

struct CDevice {
  void* device;
  const DeviceFunctions* functions;  ///< Valid as long as the library that created it is open.
};

/// Ownership: the receiver calls `destroy_device`, or passes it to from_c.
CDevice to_c(std::unique_ptr<Device> device);
/// The device with these functions. It owns them. \param info  the device's description, which is not requested again
std::unique_ptr<Device> from_c(const CDevice& plain, const DeviceInfo& info);

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
/// The name of the entry. Its number changes with the structures here, and the bytes of a DeviceSystem.
inline constexpr char kDevicePluginEntry[] = "shard_devices_3";
using GetDevicePlugin = const DevicePlugin* (*)();

/// The implementation of a plug-in's functions.
bool put_devices(const ByteSink* system, const ErrorSink* errors,
                 const std::function<DeviceSystem()>& describe) noexcept;
bool open_c_device(CDevice* made, const ErrorSink* errors,
                   const std::function<std::unique_ptr<Device>()>& open) noexcept;

}  // namespace shard

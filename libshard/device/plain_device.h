/// \file
/// A Device as plain functions, so that the one of a plug-in serves a program with another C++ library. Between them
/// lies C alone (libshard/ranks/plugin_call.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "libshard/device/device.h"
#include "libshard/ranks/plain_group.h"

namespace shard {

struct PlainBuffer {
  void* buffer;
  std::byte* data;
  std::int64_t size;
};

/// A box of elements between two addresses: DeviceStream::strided_copy's arguments.
struct PlainBox {
  const std::int64_t* sizes;
  const std::int64_t* from_strides;
  const std::int64_t* to_strides;
  std::size_t dimensions, element_bytes;
};

enum class PlainCopy : int { kIn, kOut, kInside };

/// The operations of device.h, with its preconditions, errors and threads. Those that can fail return false then.
struct DeviceFunctions {
  bool (*memory)(void* device, std::int64_t* free_bytes, std::int64_t* total_bytes, const ErrorSink* errors);
  bool (*allocate)(void* device, std::int64_t bytes, bool is_pinned, PlainBuffer* made, const ErrorSink* errors);
  bool (*make_stream)(void* device, void** made, const ErrorSink* errors);
  bool (*make_event)(void* device, void** made, const ErrorSink* errors);
  /// The group stays the caller's; the link is destroyed before it.
  bool (*connect)(void* device, PlainGroup group, std::int64_t milliseconds, void** made, const ErrorSink* errors);

  bool (*synchronize_event)(void* event, const ErrorSink* errors);

  bool (*copy)(void* stream, PlainCopy how, std::byte* to, const std::byte* from, std::int64_t bytes,
               const ErrorSink* errors);
  bool (*strided_copy)(void* stream, PlainBox box, const std::byte* from, std::byte* to, const ErrorSink* errors);
  bool (*cast)(void* stream, int from, PlainBytes in, int to, PlainRoom out, std::int64_t* overflows,
               const ErrorSink* errors);
  bool (*record)(void* stream, void* event, const ErrorSink* errors);
  bool (*wait)(void* stream, void* event, const ErrorSink* errors);
  bool (*synchronize_stream)(void* stream, const ErrorSink* errors);

  /// As many pieces each as the group has ranks.
  bool (*exchange)(void* link, const PlainBytes* to, const PlainRoom* from, std::size_t ranks, const ErrorSink* errors);

  void (*destroy_buffer)(void* buffer);
  void (*destroy_event)(void* event);
  void (*destroy_stream)(void* stream);
  void (*destroy_link)(void* link);
  void (*destroy_device)(void* device);
};

struct PlainDevice {
  void* device;
  const DeviceFunctions* functions;  ///< Live as long as the library that made it.
};

/// Ownership: whoever has it calls `destroy_device`, or gives it to from_plain.
PlainDevice to_plain(std::unique_ptr<Device> device);
/// The device whose functions they are; it owns them. \param info  of that device, which does not cross once more
std::unique_ptr<Device> from_plain(const PlainDevice& plain, const DeviceInfo& info);

}  // namespace shard

/// \file Device: an accelerator with separate memory, as the executor uses it: buffers, asynchronous streams of work,
///   and the two operations that a tile needs between reading and writing.
///
/// Implementations: CUDA (libshard_cuda.so, opened on demand: device_system.h), and an in-memory fake for tests
/// (tests/support/device_double.h).
///
/// A device address is a `std::byte*` that the host must not dereference. Streams receive work in order and run it
/// later. They synchronize only through events. Any later call may report a failure of the device, as Error kResource
/// or kInternal.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "libshard/core/dtype.h"
#include "libshard/core/error.h"
#include "libshard/ranks/group.h"

namespace shard {

struct DeviceInfo {
  int number = 0;  ///< The number as in "cuda:1".
  std::string name;
  int major = 0, minor = 0;  ///< The compute capability.
  std::int64_t memory_bytes = 0;
};

/// Memory of a device, or memory of the host that a device can access at full speed ("pinned"). Its content is
/// undefined until it is written. Ownership: owns the memory; streams must have finished using it. Must not outlive its
/// device.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }

 protected:
  DeviceBuffer(std::byte* data, std::int64_t size) : data_(data), size_(size) {}

 private:
  std::byte* data_;
  std::int64_t size_;
};

/// A point in a stream's work. Before DeviceStream::record, the point counts as passed.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  /// Waits until the work before the point is done. Threads: any.
  virtual void synchronize() = 0;
};

/// Threads: one at a time. Ownership: destroyed only once its work is done (synchronize).
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  virtual void copy_in(std::byte* to, const std::byte* from_pinned, std::int64_t bytes) = 0;
  virtual void copy_out(std::byte* to_pinned, const std::byte* from, std::int64_t bytes) = 0;
  /// Does the same as strided_copy (exec/strided_copy.h), between addresses of the device. The spans need to be valid
  /// only during the call.
  virtual void strided_copy(std::span<const std::int64_t> sizes, const std::byte* from,
                            std::span<const std::int64_t> from_strides, std::byte* to,
                            std::span<const std::int64_t> to_strides, std::size_t element_bytes) = 0;
  /// Does the same as cast (exec/cast.h), with the same bits, between addresses of the device. `in` and `out` are
  /// aligned to their elements' sizes, and do not overlap. \param overflows  device address of a counter, to which the
  /// number of finite values that became infinite or NaN is added.
  virtual void cast(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out,
                    std::int64_t* overflows) = 0;

  /// Sets `event` to the point after all work so far.
  virtual void record(DeviceEvent& event) = 0;
  /// Later work starts after the event's point is passed. The host does not wait.
  virtual void wait(DeviceEvent& event) = 0;
  /// The host waits until all work is done.
  virtual void synchronize() = 0;
};

/// Transfers bytes between the devices of ranks, as Group::exchange does for memory of the host. Must not outlive the
/// device or the group from which it was created.
class DeviceLink {
 public:
  virtual ~DeviceLink() = default;
  /// Sends to[i], in this rank's device memory, to rank i, which receives it in its from[own rank], in its device
  /// memory. Returns when everything has arrived. Collective. Both sides agree on each piece's size, which may be 0.
  /// \throws Error kPeer  a rank is lost, or silent for longer than the timeout. The link is then broken.
  virtual void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) = 0;
};

/// Threads: any, except for connect. Ownership: the objects that it creates must not outlive it.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual std::int64_t free_bytes() const = 0;
  /// \throws Error kResource  the device has too little memory; the error gives both numbers.
  virtual std::unique_ptr<DeviceBuffer> allocate(std::int64_t bytes) = 0;
  /// Memory of the host that copy_in and copy_out can access. \throws Error kResource
  virtual std::unique_ptr<DeviceBuffer> allocate_pinned(std::int64_t bytes) = 0;
  virtual std::unique_ptr<DeviceStream> make_stream() = 0;
  virtual std::unique_ptr<DeviceEvent> make_event() = 0;
  /// Collective: creates a link between the devices of the group's ranks, each of which is a different device.
  /// \throws Error  the same on all ranks: kUnsupported  a rank lacks the library; kPeer
  virtual std::unique_ptr<DeviceLink> connect(Group& group, std::chrono::milliseconds timeout) = 0;
};

/// "cannot allocate N bytes on device 'name'", with both numbers.
Error out_of_device_memory(const DeviceInfo& device, std::int64_t wanted_bytes, std::int64_t free_bytes);

}  // namespace shard

/// \file
/// Device: an accelerator with memory of its own, as the executor sees it: buffers, asynchronous streams of work, and
/// the two operations that a tile needs between reading and writing.
///
/// Implementations: CUDA (libshard_cuda.so, opened on demand: device_system.h) and a double of the tests, whose memory
/// is the host's (tests/support/device_double.h).
///
/// A device address is a `std::byte*` that the host must not follow. Streams take work in order and run it later;
/// streams synchronize only through events. A failure of the device may show in any later call, as Error kResource or
/// kInternal.
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
  int number = 0;  ///< As "cuda:1" counts.
  std::string name;
  int major = 0, minor = 0;  ///< Compute capability.
  std::int64_t memory_bytes = 0;
};

struct DeviceMemory {
  std::int64_t free_bytes = 0, total_bytes = 0;
};

/// Memory of a device, or of the host where a device can reach it at full speed ("pinned"). Its content is undefined
/// until it is written. Ownership: of the memory; streams must be through with it. Must not outlive its device.
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

/// A point in a stream's work; before DeviceStream::record it is a point that was passed.
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
  /// Both in this device's memory.
  virtual void copy(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;

  /// As strided_copy (exec/strided_copy.h), between addresses of the device. The spans may end with the call.
  virtual void strided_copy(std::span<const std::int64_t> sizes, const std::byte* from,
                            std::span<const std::int64_t> from_strides, std::byte* to,
                            std::span<const std::int64_t> to_strides, std::size_t element_bytes) = 0;
  /// As cast (exec/cast.h), with the same bits, between addresses of the device. `in` and `out` begin at multiples of
  /// their elements' bytes, and do not overlap. \param overflows  device address of a number that grows by how many
  /// finite values became infinite or NaN.
  virtual void cast(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out,
                    std::int64_t* overflows) = 0;

  /// `event` becomes the point after all work so far.
  virtual void record(DeviceEvent& event) = 0;
  /// Later work begins once the event's point is passed. The host does not wait.
  virtual void wait(DeviceEvent& event) = 0;
  /// The host waits until all work is done.
  virtual void synchronize() = 0;
};

/// Moves bytes between the devices of ranks: what Group::exchange is for memory of the host. Must not outlive the
/// device or the group that it was made from.
class DeviceLink {
 public:
  virtual ~DeviceLink() = default;
  /// Sends to[i], at this rank's device, to rank i, which receives it in its from[own rank], at its own. Returns when
  /// all of it has arrived. Collective; both sides agree on each piece's bytes, which may be none.
  /// \throws Error kPeer  a rank is lost, or silent for longer than the timeout; the link is broken then.
  virtual void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) = 0;
};

/// Threads: any, but for connect. Ownership: what it makes must not outlive it.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual DeviceMemory memory() const = 0;
  /// \throws Error kResource  the device has too little memory; the error gives both numbers.
  virtual std::unique_ptr<DeviceBuffer> allocate(std::int64_t bytes) = 0;
  /// Memory of the host that copy_in and copy_out reach. \throws Error kResource
  virtual std::unique_ptr<DeviceBuffer> allocate_pinned(std::int64_t bytes) = 0;
  virtual std::unique_ptr<DeviceStream> make_stream() = 0;
  virtual std::unique_ptr<DeviceEvent> make_event() = 0;
  /// Collective: a link between the devices of the group's ranks, each a device of its own.
  /// \throws Error  the same on all ranks: kUnsupported  a rank lacks the library; kPeer
  virtual std::unique_ptr<DeviceLink> connect(Group& group, std::chrono::milliseconds timeout) = 0;
};

/// "cannot allocate N bytes on device 'name'", with both numbers.
Error out_of_device_memory(const DeviceInfo& device, std::int64_t wanted_bytes, std::int64_t free_bytes);

}  // namespace shard

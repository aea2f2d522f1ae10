/// \file
/// A fake device that uses the host's memory, so that GPU code can be tested without a GPU.
///
/// It runs the bodies of CUDA kernels, one thread after another, and is as strict as a real device may be. A stream's
/// work runs as late as possible, when a caller waits for it, so a missing wait gives wrong bytes. New memory contains
/// a poison pattern, addresses outside its buffers throw std::logic_error, and its memory is limited. All transferred
/// bytes are counted.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>

#include "libshard/device/device.h"

namespace shard::testing {

struct DeviceCounters {
  std::atomic<std::int64_t> bytes_in{0}, bytes_out{0};       ///< From the host, to the host.
  std::atomic<std::int64_t> bytes_copied{0}, bytes_cast{0};  ///< Bytes read by strided_copy, bytes read by cast.
  std::atomic<std::int64_t> bytes_received{0};               ///< From other devices.
  std::atomic<std::int64_t> used_bytes{0}, most_bytes{0};    ///< Bytes of the device's memory; now and at most.
  std::atomic<std::int64_t> pinned_bytes{0}, most_pinned{0};
};

struct DoubleOptions {
  int number = 0;
  std::int64_t memory_bytes = 1 << 30;
  std::int64_t taken_bytes = 0;  ///< Bytes that other programs use.
};

class DeviceDouble : public Device {
 public:
  explicit DeviceDouble(const DoubleOptions& options);
  ~DeviceDouble() override;
  DeviceCounters& counters() { return counters_; }

  const DeviceInfo& info() const override { return info_; }
  std::int64_t free_bytes() const override;
  std::unique_ptr<DeviceBuffer> allocate(std::int64_t bytes) override;
  std::unique_ptr<DeviceBuffer> allocate_pinned(std::int64_t bytes) override;
  std::unique_ptr<DeviceStream> make_stream() override;
  std::unique_ptr<DeviceEvent> make_event() override;
  std::unique_ptr<DeviceLink> connect(Group& group, std::chrono::milliseconds timeout) override;

  enum class Place { kDevice, kPinned };
  /// \throws std::logic_error  the range is not in one buffer of that kind.
  void check(Place place, const std::byte* data, std::int64_t bytes) const;

 private:
  friend class DoubleBuffer;

  const DoubleOptions options_;
  DeviceInfo info_;
  DeviceCounters counters_;
  mutable std::mutex mutex_;
  std::set<std::pair<const std::byte*, std::int64_t>> buffers_[2];  ///< By Place.
};

}  // namespace shard::testing

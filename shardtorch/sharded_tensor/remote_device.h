/// \file
/// The owner of a shard: a rank of the world or an RPC worker, and its device.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace shard {

/// A value. Two are equal if worker, rank and device are equal ("cuda" is not "cuda:0"). Ranks are those of the whole
/// world, even if the tensor is on a group of some of them.
///
/// Text: "rank:1/cuda:0", "worker1/cuda:0", "cuda:0" (this process), "rank:1" and "worker1" (device cpu). Source of the
/// grammar: torch/distributed/remote_device.py.
class RemoteDevice {
 public:
  /// \throws c10::ValueError  "Could not parse remote_device: ..."; torch's own error for an invalid device.
  RemoteDevice(std::string_view text);                                      // NOLINT: placements are written as text.
  RemoteDevice(const char* text) : RemoteDevice(std::string_view(text)) {}  // NOLINT
  RemoteDevice(const std::string& text) : RemoteDevice(std::string_view(text)) {}  // NOLINT
  RemoteDevice(c10::Device device) : device_(device) {}                            // NOLINT
  /// \throws c10::ValueError  a negative rank.
  RemoteDevice(int rank, c10::Device device);

  const std::optional<std::string>& worker_name() const { return worker_name_; }
  std::optional<int> rank() const { return rank_; }
  c10::Device device() const { return device_; }
  void set_device(c10::Device device) { device_ = device; }
  std::string str() const;

  friend bool operator==(const RemoteDevice&, const RemoteDevice&) = default;

 private:
  std::optional<std::string> worker_name_;
  std::optional<int> rank_;
  c10::Device device_{c10::kCPU};
};

std::ostream& operator<<(std::ostream& out, const RemoteDevice& device);

}  // namespace shard

template <>
struct std::hash<shard::RemoteDevice> {
  std::size_t operator()(const shard::RemoteDevice& device) const noexcept;
};

/// \file PieceTransport: the memory of pieces that are sent between ranks, and the way they are sent. The group sends
///   pieces in host memory. A link between the ranks' devices sends pieces in device memory. Inside libshard/job only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "libshard/device/device.h"
#include "libshard/ranks/group.h"

namespace shard {

/// Memory for boxes. It is returned when its last owner releases it.
struct PieceMemory {
  std::byte* packed = nullptr;   ///< The host memory in which a sender packs boxes.
  std::byte* carried = nullptr;  ///< The memory from which boxes are sent, or in which they arrive.
  std::shared_ptr<void> owner{};
};

/// Threads: any, except for exchange.
class PieceTransport {
 public:
  virtual ~PieceTransport() = default;
  virtual bool is_on_device() const = 0;
  virtual PieceMemory memory_to_send(std::int64_t bytes) = 0;
  virtual PieceMemory memory_to_receive(std::int64_t bytes) = 0;
  /// Prepares a box of `bytes` at `begin` for sending after it was packed.
  virtual void seal(const PieceMemory& memory, std::int64_t begin, std::int64_t bytes) = 0;
  /// Does the same as Group::exchange, between carried memory. Collective.
  virtual void exchange(Group& group, std::span<const std::span<const std::byte>> to,
                        std::span<const std::span<std::byte>> from) = 0;
};

std::unique_ptr<PieceTransport> transport_by_group();

/// A transport by a link between devices. It allocates memory for two sent rounds, on host and device, and for three
/// batches, on the device, each of `unit_bytes`. No request is larger. \throws Error kResource
/// Ownership: device and link must outlive it.
std::unique_ptr<PieceTransport> transport_by_link(Device& device, DeviceLink& link, std::int64_t unit_bytes);

}  // namespace shard

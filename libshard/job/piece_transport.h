/// \file
/// Where pieces that travel between ranks lie, and how they travel: in memory of the host by the group, or in that of
/// the ranks' devices by the link between them. Inside libshard/job only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "libshard/device/device.h"
#include "libshard/ranks/group.h"

namespace shard {

/// Memory for boxes, returned when its last owner releases it.
struct PieceMemory {
  std::byte* packed = nullptr;   ///< Where a sender packs boxes: on the host.
  std::byte* carried = nullptr;  ///< Where they leave from, or arrive: where they travel.
  std::shared_ptr<void> owner{};
};

/// Threads: any, but for exchange.
class PieceTransport {
 public:
  virtual ~PieceTransport() = default;
  virtual bool is_on_device() const = 0;
  virtual PieceMemory memory_to_send(std::int64_t bytes) = 0;
  virtual PieceMemory memory_to_receive(std::int64_t bytes) = 0;
  /// A box of `bytes` at `begin` was packed: brings it to where it leaves from.
  virtual void seal(const PieceMemory& memory, std::int64_t begin, std::int64_t bytes) = 0;
  /// As Group::exchange, between carried memory. Collective.
  virtual void exchange(Group& group, std::span<const std::span<const std::byte>> to,
                        std::span<const std::span<std::byte>> from) = 0;
};

std::unique_ptr<PieceTransport> transport_by_group();

/// Takes memory for two rounds that are sent, on host and device, and for three batches, on the device, each of
/// `unit_bytes`: nothing that is asked for is larger. \throws Error kResource
/// Ownership: device and link must outlive it.
std::unique_ptr<PieceTransport> transport_by_link(Device& device, DeviceLink& link, std::int64_t unit_bytes);

}  // namespace shard

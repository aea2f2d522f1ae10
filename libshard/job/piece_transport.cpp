#include "libshard/job/piece_transport.h"

#include <cassert>
#include <mutex>
#include <utility>
#include <vector>

namespace shard {

namespace {

/// Pieces travel as bytes of the group, through host memory. Packing and sending use the same memory.
class ByGroup final : public PieceTransport {
 public:
  bool is_on_device() const override { return false; }
  PieceMemory memory_to_send(std::int64_t bytes) override {
    const std::shared_ptr<std::byte[]> memory(new std::byte[static_cast<std::size_t>(bytes)]);
    return {memory.get(), memory.get(), memory};
  }
  PieceMemory memory_to_receive(std::int64_t bytes) override { return memory_to_send(bytes); }
  void seal(const PieceMemory&, std::int64_t, std::int64_t) override {}
  void exchange(Group& group, std::span<const std::span<const std::byte>> to,
                std::span<const std::span<std::byte>> from) override {
    group.exchange(to, from);
  }
};

/// \pre `things` is not empty
template <class T>
T take_last(std::vector<T>& things) {
  assert(!things.empty());
  T thing = std::move(things.back());
  things.pop_back();
  return thing;
}

/// Pieces are packed in pinned memory, copied to the device, and travel between devices. Buffers are allocated once and
/// lent for each round and batch, as many as the exchange uses at once.
class ByLink final : public PieceTransport {
 public:
  ByLink(Device& device, DeviceLink& link, std::int64_t unit_bytes) : device_(device), link_(link) {
    constexpr int kRounds = 2, kBatches = 3;
    for (int i = 0; i < kRounds; ++i) {
      to_send_.push_back({device.allocate_pinned(unit_bytes), device.allocate(unit_bytes)});
    }
    for (int i = 0; i < kBatches; ++i) to_receive_.push_back({nullptr, device.allocate(unit_bytes)});
  }

  bool is_on_device() const override { return true; }
  PieceMemory memory_to_send(std::int64_t bytes) override { return lend(to_send_, bytes); }
  PieceMemory memory_to_receive(std::int64_t bytes) override { return lend(to_receive_, bytes); }

  /// Copies a packed box to the device. Each thread borrows a stream, so that copies of several boxes overlap.
  void seal(const PieceMemory& memory, std::int64_t begin, std::int64_t bytes) override {
    std::unique_ptr<DeviceStream> stream;
    {
      const std::scoped_lock lock(mutex_);
      stream = streams_.empty() ? device_.make_stream() : take_last(streams_);
    }
    stream->copy_in(memory.carried + begin, memory.packed + begin, bytes);
    stream->synchronize();
    const std::scoped_lock lock(mutex_);
    streams_.push_back(std::move(stream));
  }

  void exchange(Group&, std::span<const std::span<const std::byte>> to,
                std::span<const std::span<std::byte>> from) override {
    link_.exchange(to, from);
  }

 private:
  struct Unit {
    std::unique_ptr<DeviceBuffer> host, device;
  };

  PieceMemory lend(std::vector<Unit>& units, std::int64_t bytes) {
    if (bytes == 0) return {};
    const std::scoped_lock lock(mutex_);
    auto unit = std::make_unique<Unit>(take_last(units));
    assert(bytes <= unit->device->size());
    const auto give_back = [this, &units](Unit* lent) {
      const std::unique_ptr<Unit> mine(lent);
      const std::scoped_lock back(mutex_);
      units.push_back(std::move(*mine));
    };
    std::byte* const packed = unit->host == nullptr ? nullptr : unit->host->data();
    std::byte* const carried = unit->device->data();
    return {packed, carried, std::shared_ptr<Unit>(unit.release(), give_back)};
  }

  Device& device_;
  DeviceLink& link_;
  std::mutex mutex_;  ///< Guards everything below.
  std::vector<Unit> to_send_, to_receive_;
  std::vector<std::unique_ptr<DeviceStream>> streams_;
};

}  // namespace

std::unique_ptr<PieceTransport> transport_by_group() { return std::make_unique<ByGroup>(); }

std::unique_ptr<PieceTransport> transport_by_link(Device& device, DeviceLink& link, std::int64_t unit_bytes) {
  return std::make_unique<ByLink>(device, link, unit_bytes);
}

}  // namespace shard

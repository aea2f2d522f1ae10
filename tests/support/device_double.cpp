#include "tests/support/device_double.h"

#include <cstring>
#include <deque>
#include <functional>
#include <stdexcept>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/exec/cast.h"
#include "tests/support/host_grid.h"

namespace shard::testing {

namespace {

constexpr int kPoison = 0xDB;

void raise(std::atomic<std::int64_t>& most, std::int64_t value) {
  for (std::int64_t now = most; now < value && !most.compare_exchange_weak(now, value);) {
  }
}

/// Work that runs only when a caller synchronizes.
struct Queue {
  std::recursive_mutex mutex;
  std::deque<std::function<void()>> work;
  std::int64_t taken = 0, added = 0;

  void add(std::function<void()> one) {
    const std::scoped_lock lock(mutex);
    work.push_back(std::move(one));
    ++added;
  }
  void run_until(std::int64_t end) {
    const std::scoped_lock lock(mutex);
    while (taken < end) {
      const std::function<void()> one = std::move(work.front());
      work.pop_front();
      ++taken;
      one();
    }
  }
};

class DoubleEvent final : public DeviceEvent {
 public:
  void synchronize() override {
    if (queue != nullptr) queue->run_until(point);
  }
  std::shared_ptr<Queue> queue;
  std::int64_t point = 0;
};

/// The number of bytes before and after an address that a strided box reaches.
std::pair<std::int64_t, std::int64_t> reach(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                                            std::size_t element_bytes) {
  std::int64_t low = 0, high = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const std::int64_t last = (sizes[d] - 1) * strides[d];
    (last < 0 ? low : high) += last;
  }
  const auto bytes = static_cast<std::int64_t>(element_bytes);
  return {low * bytes, high * bytes};
}

class DoubleStream final : public DeviceStream {
 public:
  explicit DoubleStream(DeviceDouble& device) : device_(device), queue_(std::make_shared<Queue>()) {}

  void copy_in(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    device_.check(DeviceDouble::Place::kDevice, to, bytes);
    device_.check(DeviceDouble::Place::kPinned, from, bytes);
    device_.counters().bytes_in += bytes;
    queue_->add([=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
  }
  void copy_out(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    device_.check(DeviceDouble::Place::kPinned, to, bytes);
    device_.check(DeviceDouble::Place::kDevice, from, bytes);
    device_.counters().bytes_out += bytes;
    queue_->add([=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
  }

  void strided_copy(std::span<const std::int64_t> sizes, const std::byte* from,
                    std::span<const std::int64_t> from_strides, std::byte* to, std::span<const std::int64_t> to_strides,
                    std::size_t element_bytes) override {
    const kernels::CopyShape shape = kernels::copy_shape(sizes, from, from_strides, to, to_strides, element_bytes);
    if (shape.units == 0) return;
    const auto [from_low, from_high] = reach(sizes, from_strides, element_bytes);
    const auto [to_low, to_high] = reach(sizes, to_strides, element_bytes);
    device_.check(DeviceDouble::Place::kDevice, from + from_low, from_high - from_low);
    device_.check(DeviceDouble::Place::kDevice, to + to_low, to_high - to_low);
    device_.counters().bytes_copied += shape.units * shape.unit_bytes;
    queue_->add([=] { kernels::launch_copy(shape, from, to, HostGrid()); });
  }

  void cast(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out,
            std::int64_t* overflows) override {
    if (!can_cast(from, to)) throw std::logic_error("a cast that cannot be");
    const std::int64_t elements = static_cast<std::int64_t>(in.size()) / element_bytes(from);
    device_.check(DeviceDouble::Place::kDevice, in.data(), static_cast<std::int64_t>(in.size()));
    device_.check(DeviceDouble::Place::kDevice, out.data(), elements * element_bytes(to));
    device_.check(DeviceDouble::Place::kDevice, reinterpret_cast<std::byte*>(overflows), sizeof *overflows);
    device_.counters().bytes_cast += static_cast<std::int64_t>(in.size());
    const kernels::CastShape shape = kernels::cast_shape(from, to, elements);
    queue_->add([=] { kernels::launch_cast(shape, in.data(), out.data(), overflows, HostGrid()); });
  }

  void record(DeviceEvent& event) override {
    auto& own = dynamic_cast<DoubleEvent&>(event);
    own.queue = queue_;
    own.point = queue_->added;
  }
  void wait(DeviceEvent& event) override {
    const auto& other = dynamic_cast<DoubleEvent&>(event);
    if (other.queue == nullptr) return;
    queue_->add([queue = other.queue, point = other.point] { queue->run_until(point); });
  }
  void synchronize() override { queue_->run_until(queue_->added); }

 private:
  DeviceDouble& device_;
  std::shared_ptr<Queue> queue_;
};

/// Ranks of one process pass addresses to each other, and the receiver copies.
class DoubleLink final : public DeviceLink {
 public:
  DoubleLink(DeviceDouble& device, Group& group) : device_(device), group_(group) {}

  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    const auto ranks = static_cast<std::size_t>(group_.size());
    std::vector<const std::byte*> own(ranks), heard(ranks);
    std::vector<std::span<const std::byte>> tell(ranks);
    std::vector<std::span<std::byte>> hear(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      device_.check(DeviceDouble::Place::kDevice, to[rank].data(), static_cast<std::int64_t>(to[rank].size()));
      own[rank] = to[rank].data();
      tell[rank] = std::as_bytes(std::span(own).subspan(rank, to[rank].empty() ? 0 : 1));
      hear[rank] = std::as_writable_bytes(std::span(heard).subspan(rank, from[rank].empty() ? 0 : 1));
    }
    group_.exchange(tell, hear);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto bytes = static_cast<std::int64_t>(from[rank].size());
      if (bytes == 0) continue;
      device_.check(DeviceDouble::Place::kDevice, from[rank].data(), bytes);
      device_.counters().bytes_received += bytes;
      std::memcpy(from[rank].data(), heard[rank], from[rank].size());
    }
    group_.barrier();  // Sent data must not change until all have received it.
  }

 private:
  DeviceDouble& device_;
  Group& group_;
};

}  // namespace

class DoubleBuffer final : public DeviceBuffer {
 public:
  DoubleBuffer(DeviceDouble& device, DeviceDouble::Place place, std::int64_t bytes)
      : DeviceBuffer(new (std::align_val_t{256}) std::byte[static_cast<std::size_t>(bytes)], bytes),
        device_(device),
        place_(place) {
    std::memset(data(), kPoison, static_cast<std::size_t>(bytes));
    count(bytes);
    const std::scoped_lock lock(device_.mutex_);
    device_.buffers_[static_cast<int>(place_)].emplace(data(), bytes);
  }
  ~DoubleBuffer() override {
    {
      const std::scoped_lock lock(device_.mutex_);
      device_.buffers_[static_cast<int>(place_)].erase({data(), size()});
    }
    count(-size());
    operator delete[](data(), std::align_val_t{256});
  }

 private:
  void count(std::int64_t bytes) {
    DeviceCounters& counters = device_.counters_;
    const bool is_pinned = place_ == DeviceDouble::Place::kPinned;
    const std::int64_t now = (is_pinned ? counters.pinned_bytes : counters.used_bytes) += bytes;
    raise(is_pinned ? counters.most_pinned : counters.most_bytes, now);
  }

  DeviceDouble& device_;
  const DeviceDouble::Place place_;
};

DeviceDouble::DeviceDouble(const DoubleOptions& options) : options_(options) {
  info_ = {.number = options.number, .name = "double", .major = 9, .minor = 0, .memory_bytes = options.memory_bytes};
}
DeviceDouble::~DeviceDouble() = default;

std::int64_t DeviceDouble::free_bytes() const {
  return options_.memory_bytes - options_.taken_bytes - counters_.used_bytes;
}

std::unique_ptr<DeviceBuffer> DeviceDouble::allocate(std::int64_t bytes) {
  if (const std::int64_t free = free_bytes(); bytes > free) throw out_of_device_memory(info_, bytes, free);
  return std::make_unique<DoubleBuffer>(*this, Place::kDevice, bytes);
}
std::unique_ptr<DeviceBuffer> DeviceDouble::allocate_pinned(std::int64_t bytes) {
  return std::make_unique<DoubleBuffer>(*this, Place::kPinned, bytes);
}
std::unique_ptr<DeviceStream> DeviceDouble::make_stream() { return std::make_unique<DoubleStream>(*this); }
std::unique_ptr<DeviceEvent> DeviceDouble::make_event() { return std::make_unique<DoubleEvent>(); }

std::unique_ptr<DeviceLink> DeviceDouble::connect(Group& group, std::chrono::milliseconds) {
  return std::make_unique<DoubleLink>(*this, group);
}

void DeviceDouble::check(Place place, const std::byte* data, std::int64_t bytes) const {
  if (bytes == 0) return;
  const std::scoped_lock lock(mutex_);
  for (const auto& [begin, size] : buffers_[static_cast<int>(place)]) {
    if (data >= begin && data + bytes <= begin + size) return;
  }
  throw std::logic_error(place == Place::kDevice ? "an address that is not the device's" : "memory that is not pinned");
}

}  // namespace shard::testing

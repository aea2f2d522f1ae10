/// \file
/// Checks for every Device: the fake one, and one of CUDA.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "libshard/device/device.h"
#include "libshard/exec/cast.h"
#include "libshard/ranks/group.h"
#include "tests/device/cast_samples.h"
#include "tests/exec/strided_cases.h"

namespace shard::testing {

/// Memory of a device and of the host, with the largest size so far.
class Staging {
 public:
  explicit Staging(Device& device) : device_(device), stream(device.make_stream()) {}
  std::byte* on_host(std::size_t index, std::size_t bytes) { return grow(host_[index], bytes, true); }
  std::byte* on_device(std::size_t index, std::size_t bytes) { return grow(device_memory_[index], bytes, false); }

 private:
  std::byte* grow(std::unique_ptr<DeviceBuffer>& buffer, std::size_t bytes, bool is_host) {
    const auto wanted = std::max<std::int64_t>(static_cast<std::int64_t>(bytes), 1 << 16);
    if (buffer == nullptr || buffer->size() < wanted) {
      buffer = is_host ? device_.allocate_pinned(wanted) : device_.allocate(wanted);
    }
    return buffer->data();
  }

  Device& device_;
  std::unique_ptr<DeviceBuffer> host_[3], device_memory_[3];

 public:
  const std::unique_ptr<DeviceStream> stream;
};

/// Both sides' whole buffers go to the device, so that a byte written outside the box is detected.
inline StridedCopy strided_copy_on(Staging& staging) {
  return [&staging](std::span<const std::int64_t> sizes, const std::byte* from,
                    std::span<const std::int64_t> from_strides, std::byte* to, std::span<const std::int64_t> to_strides,
                    std::size_t element_bytes) {
    struct Side {
      std::int64_t low = 0, bytes = 0;
    };
    const auto reached = [&](std::span<const std::int64_t> strides) {
      const auto [low, bytes] = reach({sizes.begin(), sizes.end()}, {strides.begin(), strides.end()}, element_bytes);
      return Side{low, static_cast<std::int64_t>(bytes)};
    };
    const Side source = reached(from_strides), target = reached(to_strides);
    const auto source_bytes = static_cast<std::size_t>(source.bytes),
               target_bytes = static_cast<std::size_t>(target.bytes);
    std::byte* const host_from = staging.on_host(0, source_bytes);
    std::byte* const host_to = staging.on_host(1, target_bytes);
    std::byte* const device_from = staging.on_device(0, source_bytes);
    std::byte* const device_to = staging.on_device(1, target_bytes);
    std::memcpy(host_from, from - source.low, source_bytes);
    std::memcpy(host_to, to - target.low, target_bytes);
    DeviceStream& stream = *staging.stream;
    stream.copy_in(device_from, host_from, source.bytes);
    stream.copy_in(device_to, host_to, target.bytes);
    stream.strided_copy(sizes, device_from + source.low, from_strides, device_to + target.low, to_strides,
                        element_bytes);
    stream.copy_out(host_to, device_to, target.bytes);
    stream.synchronize();
    std::memcpy(to - target.low, host_to, target_bytes);
  };
}

/// Casts every pair of dtypes and compares bits and counts with the CPU's.
inline void expect_casts_of_the_cpu(Device& device) {
  Staging staging(device);
  DeviceStream& stream = *staging.stream;
  for (const CastSample& sample : cast_samples()) {
    const std::size_t in_bytes = sample.in.size(), out_bytes = sample.out_bytes();
    std::byte* const host_in = staging.on_host(0, in_bytes);
    std::byte* const host_out = staging.on_host(1, out_bytes);
    std::byte* const host_count = staging.on_host(2, sizeof(std::int64_t));
    std::byte* const in = staging.on_device(0, in_bytes);
    std::byte* const out = staging.on_device(1, out_bytes);
    std::byte* const count = staging.on_device(2, sizeof(std::int64_t));
    std::memcpy(host_in, sample.in.data(), in_bytes);
    std::memset(host_count, 0, sizeof(std::int64_t));
    stream.copy_in(in, host_in, static_cast<std::int64_t>(in_bytes));
    stream.copy_in(count, host_count, sizeof(std::int64_t));
    stream.cast(sample.from, {in, in_bytes}, sample.to, {out, out_bytes}, reinterpret_cast<std::int64_t*>(count));
    stream.copy_out(host_out, out, static_cast<std::int64_t>(out_bytes));
    stream.copy_out(host_count, count, sizeof(std::int64_t));
    stream.synchronize();
    std::vector<std::byte> expected(out_bytes);
    std::int64_t overflows = 0;
    std::memcpy(&overflows, host_count, sizeof overflows);
    EXPECT_EQ(overflows, cast(sample.from, sample.in, sample.to, expected)) << sample.name();
    EXPECT_EQ(std::memcmp(expected.data(), host_out, out_bytes), 0) << sample.name();
  }
}

/// Work of one stream waits for an event of another stream.
inline void expect_events_order_streams(Device& device) {
  constexpr std::int64_t kBytes = 8 << 20;
  const std::array<std::int64_t, 1> size{kBytes}, stride{1};
  const auto host = device.allocate_pinned(kBytes), back = device.allocate_pinned(kBytes);
  const auto first = device.allocate(kBytes), second = device.allocate(kBytes);
  const auto in = device.make_stream(), copies = device.make_stream(), out = device.make_stream();
  const auto loaded = device.make_event(), copied = device.make_event(), done = device.make_event();
  for (int round = 0; round < 4; ++round) {
    std::memset(host->data(), 'a' + round, static_cast<std::size_t>(kBytes));
    in->copy_in(first->data(), host->data(), kBytes);
    in->record(*loaded);
    copies->wait(*loaded);
    copies->strided_copy(size, first->data(), stride, second->data(), stride, 1);
    copies->record(*copied);
    out->wait(*copied);
    out->copy_out(back->data(), second->data(), kBytes);
    out->record(*done);
    done->synchronize();
    ASSERT_EQ(std::memcmp(back->data(), host->data(), static_cast<std::size_t>(kBytes)), 0);
  }
}

/// A request for more than the total memory is refused with both numbers, and the device remains usable.
inline void expect_memory_is_limited(Device& device) {
  const std::int64_t free_bytes = device.free_bytes(), wanted_bytes = device.info().memory_bytes + 1;
  EXPECT_GT(free_bytes, 0);
  EXPECT_LT(free_bytes, wanted_bytes);
  try {
    device.allocate(wanted_bytes);
    ADD_FAILURE() << "more memory than there is";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResource);
    EXPECT_EQ(error.expected(), std::to_string(wanted_bytes));
    EXPECT_FALSE(error.found().empty());
  }
  expect_events_order_streams(device);
}

/// A link of one rank, which sends to itself.
inline void expect_link_of_one_rank(Device& device) {
  constexpr std::int64_t kBytes = 3 << 20;
  const auto link = device.connect(solo_group(), std::chrono::seconds(60));
  const auto host = device.allocate_pinned(kBytes), back = device.allocate_pinned(kBytes);
  const auto from = device.allocate(kBytes), to = device.allocate(kBytes);
  const std::vector<std::byte> content = noise(static_cast<std::size_t>(kBytes), 5);
  std::memcpy(host->data(), content.data(), content.size());
  const auto stream = device.make_stream();
  stream->copy_in(from->data(), host->data(), kBytes);
  stream->synchronize();
  const std::span<const std::byte> sent(from->data(), static_cast<std::size_t>(kBytes));
  const std::span<std::byte> received(to->data(), static_cast<std::size_t>(kBytes));
  link->exchange({&sent, 1}, {&received, 1});
  stream->copy_out(back->data(), to->data(), kBytes);
  stream->synchronize();
  EXPECT_EQ(std::memcmp(back->data(), content.data(), content.size()), 0);
}

}  // namespace shard::testing

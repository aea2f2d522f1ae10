// Times a GPU and the CPU: gpu_bench [MEBIBYTES] (default 1024). Best of 5 runs each, in GB/s of bytes read. Without a
// GPU it prints the reason and exits with 77.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/device/device_system.h"
#include "libshard/exec/cast.h"
#include "libshard/exec/strided_copy.h"

namespace shard {
namespace {

using Clock = std::chrono::steady_clock;

double best_seconds(const std::function<void()>& run) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const Clock::time_point begin = Clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

void report(const char* what, std::int64_t bytes, double seconds) {
  fmt::print("{:<56} {:8.2f} GB/s\n", what, static_cast<double>(bytes) / seconds / 1e9);
}

/// One operation on elements on the device, or on the host.
struct Operation {
  const char* on_device;
  const char* on_host;
  std::function<void(DeviceStream&, std::byte* in, std::byte* out, std::int64_t* count)> device;
  std::function<void(const std::byte* in, std::byte* out)> host;
};

std::vector<Operation> operations(std::int64_t bytes) {
  static constexpr std::int64_t kRows = 16384;
  const auto transpose = [bytes](const auto& copy, const std::byte* in, std::byte* out) {
    const std::int64_t columns = bytes / 2 / kRows;
    const std::array<std::int64_t, 2> sizes{kRows, columns}, from{1, kRows}, to{columns, 1};
    copy(sizes, in, from, out, to, 2);
  };
  const auto size = static_cast<std::size_t>(bytes);
  return {{"transpose of 2-byte elements, GPU", "transpose of 2-byte elements, CPU, 1 thread",
           [transpose](DeviceStream& stream, std::byte* in, std::byte* out, std::int64_t*) {
             transpose([&](auto... arguments) { stream.strided_copy(arguments...); }, in, out);
           },
           [transpose](const std::byte* in, std::byte* out) { transpose(strided_copy, in, out); }},
          {"float32 to bfloat16, GPU", "float32 to bfloat16, CPU, 1 thread",
           [size](DeviceStream& stream, std::byte* in, std::byte* out, std::int64_t* count) {
             stream.cast(DType::kFloat32, {in, size}, DType::kBfloat16, {out, size / 2}, count);
           },
           [size](const std::byte* in, std::byte* out) {
             cast(DType::kFloat32, {in, size}, DType::kBfloat16, {out, size / 2});
           }}};
}

void run(Device& device, std::int64_t bytes) {
  const auto host = device.allocate_pinned(bytes), back = device.allocate_pinned(bytes);
  const auto in = device.allocate(bytes), out = device.allocate(bytes), count = device.allocate(64);
  const auto stream = device.make_stream(), other = device.make_stream();
  std::fill_n(host->data(), bytes, std::byte{1});
  const auto timed = [&](const char* what, const std::function<void()>& start) {
    report(what, bytes, best_seconds([&] {
             start();
             stream->synchronize();
             other->synchronize();
           }));
  };
  timed("pinned memory to the GPU", [&] { stream->copy_in(in->data(), host->data(), bytes); });
  timed("GPU to pinned memory", [&] { stream->copy_out(back->data(), in->data(), bytes); });
  timed("both at once", [&] {
    stream->copy_in(in->data(), host->data(), bytes);
    other->copy_out(back->data(), out->data(), bytes);
  });
  for (const Operation& each : operations(bytes)) {
    timed(each.on_device,
          [&] { each.device(*stream, in->data(), out->data(), reinterpret_cast<std::int64_t*>(count->data())); });
    report(each.on_host, bytes, best_seconds([&] { each.host(host->data(), back->data()); }));
  }
}

}  // namespace
}  // namespace shard

int main(int argc, char** argv) {
  const std::int64_t mebibytes = argc > 1 ? std::atoll(argv[1]) : 1024;
  try {
    const auto device = shard::open_device({});
    fmt::print("{}, {} MiB, best of 5 runs\n", device->info().name, mebibytes);
    shard::run(*device, mebibytes << 20);
    return 0;
  } catch (const shard::Error& error) {
    fmt::print("skipped: {} ({})\n", error.what(), error.why());
    return error.code() == shard::ErrorCode::kUnsupported ? 77 : 1;
  }
}

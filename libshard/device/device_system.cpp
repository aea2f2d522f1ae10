#include "libshard/device/device_system.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"
#include "libshard/core/shared_library.h"
#include "libshard/core/short_text.h"
#include "libshard/device/plugin.h"

namespace shard {

namespace {

constexpr char kLibrary[] = "libshard_cuda.so";

/// \throws Error kUnsupported
const DevicePlugin& device_plugin() {
  const SharedLibrary library(plugin_path(kLibrary, kLibrary));
  if (!library.is_open()) {
    throw Error(ErrorCode::kUnsupported, "cannot use a GPU: the CUDA plug-in is not installed")
        .because(library.why())
        .hint(fmt::format("install the plug-in {} there; it is built only if the CUDA toolkit is found", kLibrary));
  }
  return *reinterpret_cast<GetDevicePlugin>(library.entry(kDevicePluginEntry))();
}

DeviceSystem describe(const DevicePlugin& plugin) {
  Bytes bytes;
  const ByteSink sink = sink_into(bytes);
  call(plugin.describe, &sink);
  return to_device_system(bytes);
}

Error refusal(const std::string& what) { return Error(ErrorCode::kUnsupported, "cannot use a GPU: " + what); }

/// A driver supports the runtimes of its own major version and of older ones.
bool is_too_old(const DeviceSystem& system) { return system.driver / 1000 < system.runtime / 1000; }

}  // namespace

Error out_of_device_memory(const DeviceInfo& device, std::int64_t wanted_bytes, std::int64_t free_bytes) {
  return Error(ErrorCode::kResource,
               fmt::format("cannot allocate {} bytes on device {} ({})", wanted_bytes, device.number, device.name))
      .because(fmt::format("it has {} bytes free", free_bytes))
      .expected(wanted_bytes)
      .found(free_bytes);
}

std::string version_text(DeviceVersion version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

DeviceSystem describe_devices() {
  try {
    return describe(device_plugin());
  } catch (const Error& error) {
    DeviceSystem none;
    none.problem = error.why().empty() ? error.what() : error.why();
    return none;
  }
}

int choose_device(const DeviceSystem& system, const DeviceWish& wish) {
  const auto count = static_cast<int>(system.devices.size());
  if (wish.number && wish.local_ranks > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("cannot use GPU {} for {} ranks", *wish.number, wish.local_ranks))
        .because("each rank of a host uses the GPU of its local rank");
  }
  if (system.driver == 0) throw refusal("there is no NVIDIA driver").because(system.problem);
  if (is_too_old(system)) {
    throw refusal(fmt::format("the driver supports CUDA {} only", version_text(system.driver)))
        .because(fmt::format("this build runs with CUDA {}", version_text(system.runtime)))
        .expected(fmt::format("a driver for CUDA {}", version_text(system.runtime / 1000 * 1000)))
        .found(version_text(system.driver));
  }
  if (count == 0) throw refusal("CUDA found no device").because(system.problem);
  if (count < wish.local_ranks) {
    throw refusal(fmt::format("the {} of this host have {}", plural(wish.local_ranks, "rank"), plural(count, "GPU")))
        .because("each rank on a host needs its own GPU")
        .expected(fmt::format("at least {} GPUs", wish.local_ranks))
        .found(count);
  }
  const int number = wish.number.value_or(wish.local_rank);
  if (number < 0 || number >= count) {
    throw refusal(fmt::format("there is no GPU {}", number))
        .expected(fmt::format("a number below {}", count))
        .found(number);
  }
  return system.devices[static_cast<std::size_t>(number)].number;
}

std::unique_ptr<Device> open_device(const DeviceWish& wish) {
  const DevicePlugin& plugin = device_plugin();
  const DeviceSystem system = describe(plugin);
  const int number = choose_device(system, wish);
  CDevice made{};
  call(plugin.open, number, &made);
  return from_c(made, *std::ranges::find(system.devices, number, &DeviceInfo::number));
}

}  // namespace shard

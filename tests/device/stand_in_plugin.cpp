// A libshard_cuda.so with fake devices, for tests that drive shardctl from outside. The environment describes the
// machine: STAND_IN_GPUS, STAND_IN_DRIVER (13010 is 13.1), STAND_IN_FREE (bytes). Each device adds a line to the file
// STAND_IN_LOG at its end: the bytes that it received from the host, cast, and received from other devices.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

#include "libshard/device/plugin.h"
#include "tests/support/device_double.h"

namespace shard::testing {
namespace {

std::int64_t number_of(const char* variable, std::int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

class LoggedDouble final : public DeviceDouble {
 public:
  using DeviceDouble::DeviceDouble;
  ~LoggedDouble() override {
    const char* const path = std::getenv("STAND_IN_LOG");
    if (path == nullptr) return;
    std::ofstream(path, std::ios::app) << fmt::format("in {} cast {} received {}\n", counters().bytes_in.load(),
                                                      counters().bytes_cast.load(), counters().bytes_received.load());
  }
};

DoubleOptions options_of(int number) {
  constexpr std::int64_t kMemory = std::int64_t{1} << 30;
  return {.number = number, .memory_bytes = kMemory, .taken_bytes = kMemory - number_of("STAND_IN_FREE", kMemory)};
}

DeviceSystem describe() {
  DeviceSystem system;
  system.driver = static_cast<int>(number_of("STAND_IN_DRIVER", 13010));
  system.runtime = 13000;
  system.nccl = "2.28.9";
  for (int i = 0; i < number_of("STAND_IN_GPUS", 1); ++i) system.devices.push_back(DeviceDouble(options_of(i)).info());
  if (system.devices.empty()) system.problem = "no CUDA-capable device is detected";
  return system;
}

std::unique_ptr<Device> open(int number) { return std::make_unique<LoggedDouble>(options_of(number)); }

constexpr DevicePlugin kPlugin{
    [](const ByteSink* system, const ErrorSink* errors) { return put_devices(system, errors, describe); },
    [](int number, CDevice* made, const ErrorSink* errors) {
      return open_c_device(made, errors, [number] { return open(number); });
    }};

}  // namespace
}  // namespace shard::testing

extern "C" const shard::DevicePlugin* shard_devices_3() { return &shard::testing::kPlugin; }

#include "libshard/device/plugin.h"

#include <limits>

#include "libshard/ranks/wire.h"

namespace shard {

namespace {

constexpr std::int64_t kEndOfNumbers = std::int64_t{std::numeric_limits<int>::max()} + 1;

int small_number(WireReader& reader) { return static_cast<int>(reader.number_below(kEndOfNumbers)); }

}  // namespace

Bytes to_bytes(const DeviceSystem& system) {
  WireWriter writer;
  writer.number(system.driver);
  writer.number(system.runtime);
  writer.text(system.nccl);
  writer.text(system.problem);
  for (const DeviceInfo& info : system.devices) {
    for (const int number : {info.number, info.major, info.minor}) writer.number(number);
    writer.number(info.memory_bytes);
    writer.text(info.name);
  }
  return writer.take();
}

DeviceSystem to_device_system(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  DeviceSystem system;
  system.driver = small_number(reader);
  system.runtime = small_number(reader);
  system.nccl = reader.text();
  system.problem = reader.text();
  while (!reader.at_end()) {
    DeviceInfo info;
    for (int* const number : {&info.number, &info.major, &info.minor}) *number = small_number(reader);
    info.memory_bytes = reader.number();
    info.name = reader.text();
    system.devices.push_back(std::move(info));
  }
  return system;
}

bool put_devices(const ByteSink* system, const ErrorSink* errors,
                 const std::function<DeviceSystem()>& describe) noexcept {
  return put_error(errors, [&] {
    const Bytes bytes = to_bytes(describe());
    system->put(system->place, {bytes.data(), bytes.size()});
  });
}

bool open_c_device(CDevice* made, const ErrorSink* errors,
                   const std::function<std::unique_ptr<Device>()>& open) noexcept {
  return put_error(errors, [&] { *made = to_c(open()); });
}

}  // namespace shard

#include "libshard/device/device_system.h"

#include <gtest/gtest.h>

#include "libshard/device/plugin.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::error_of;
using test::expect_error;

/// A machine with this number of GPUs, numbered 0, 1, ...
DeviceSystem machine(int gpus) {
  DeviceSystem system{.driver = 13010, .runtime = 13000, .nccl = "2.28.9", .devices = {}, .problem = {}};
  for (int i = 0; i < gpus; ++i) system.devices.push_back({.number = i, .name = "gpu", .major = 9});
  if (gpus == 0) system.problem = "no CUDA-capable device is detected";
  return system;
}

TEST(ChooseDevice, TakesTheOneOfTheLocalRankUnlessANumberIsGiven) {
  EXPECT_EQ(choose_device(machine(4), {}), 0);
  EXPECT_EQ(choose_device(machine(4), {.local_rank = 2, .local_ranks = 4}), 2);
  EXPECT_EQ(choose_device(machine(4), {.number = 3}), 3);
}

TEST(ChooseDevice, RefusesOneNumberForSeveralRanks) {
  expect_error(ErrorCode::kInvalidArgument, "GPU 1 for 2 ranks",
               [] { choose_device(machine(4), {.number = 1, .local_ranks = 2}); });
}

TEST(ChooseDevice, SaysThatThereIsNoDriverOrNoGpuAndWhatCudaSays) {
  DeviceSystem none = machine(0);
  expect_error(ErrorCode::kUnsupported, "CUDA-capable", [&] { choose_device(none, {}); });
  none.driver = 0;
  expect_error(ErrorCode::kUnsupported, "there is no NVIDIA driver", [&] { choose_device(none, {}); });
}

TEST(ChooseDevice, RefusesADriverOfAnOlderMajorVersionWithBothNumbers) {
  DeviceSystem old = machine(1);
  old.driver = 12080;
  const Error error = error_of([&] { choose_device(old, {}); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(error.found(), "12.8");
  EXPECT_EQ(error.expected(), "a driver for CUDA 13.0");
  old.driver = 13000, old.runtime = 13010;
  EXPECT_EQ(choose_device(old, {}), 0) << "versions of one major number serve each other";
}

TEST(ChooseDevice, RefusesMoreLocalRanksThanGpusWithBothNumbers) {
  const Error error = error_of([] { choose_device(machine(2), {.local_rank = 0, .local_ranks = 3}); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(error.expected(), "at least 3 GPUs");
  EXPECT_EQ(error.found(), "2");
}

TEST(ChooseDevice, RefusesANumberThatNoGpuHas) {
  const Error error = error_of([] { choose_device(machine(2), {.number = 2}); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(error.expected(), "a number below 2");
}

TEST(VersionText, IsMajorAndMinor) {
  EXPECT_EQ(version_text(13010), "13.1");
  EXPECT_EQ(version_text(12000), "12.0");
}

TEST(DeviceSystemBytes, AreReadAsTheyWereWritten) {
  const DeviceSystem system = machine(2), again = to_device_system(to_bytes(system));
  EXPECT_EQ(again.driver, system.driver);
  EXPECT_EQ(again.runtime, system.runtime);
  EXPECT_EQ(again.nccl, system.nccl);
  EXPECT_EQ(to_device_system(to_bytes(machine(0))).problem, machine(0).problem);
  ASSERT_EQ(again.devices.size(), 2U);
  EXPECT_EQ(again.devices[1].number, 1);
  EXPECT_EQ(again.devices[1].name, "gpu");
  EXPECT_EQ(again.devices[1].major, 9);
  Bytes cut = to_bytes(system);
  cut.pop_back();
  EXPECT_THROW(to_device_system(cut), Error);
}

}  // namespace
}  // namespace shard

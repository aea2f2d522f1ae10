// The checks for every Device, on a GPU. Without one it prints the reason and exits with 77.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "libshard/core/error.h"
#include "libshard/device/device_system.h"
#include "tests/device/device_cases.h"

namespace shard::testing {
namespace {

class Gpu : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { device_ = open_device({}); }
  static void TearDownTestSuite() { device_.reset(); }
  inline static std::unique_ptr<Device> device_;
};

TEST_F(Gpu, CopiesEveryStridedCase) {
  Staging staging(*device_);
  expect_transposes(strided_copy_on(staging));
  expect_random_copies(strided_copy_on(staging), 2000);
}

TEST_F(Gpu, CastsEveryPairAsTheCpuDoes) { expect_casts_of_the_cpu(*device_); }

TEST_F(Gpu, OrdersStreamsByEvents) { expect_events_order_streams(*device_); }

TEST_F(Gpu, LimitsItsMemory) { expect_memory_is_limited(*device_); }

TEST_F(Gpu, SendsToItselfByNccl) {
  if (describe_devices().nccl.empty()) GTEST_SKIP() << "NCCL is not installed";
  expect_link_of_one_rank(*device_);
}

}  // namespace
}  // namespace shard::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    shard::open_device({});
  } catch (const shard::Error& error) {
    fmt::print("skipped: {} ({})\n", error.what(), error.why());
    return 77;
  }
  return RUN_ALL_TESTS();
}

#include "tests/support/device_double.h"

#include <gtest/gtest.h>

#include "libshard/device/plugin.h"
#include "tests/device/device_cases.h"

namespace shard::testing {
namespace {

/// The fake device itself, and as a program with a different C++ library sees it: as plain functions.
class EveryDouble : public ::testing::TestWithParam<bool> {
 protected:
  static std::unique_ptr<Device> make() {
    auto device = std::make_unique<DeviceDouble>(DoubleOptions{});
    const DeviceInfo info = device->info();
    return GetParam() ? from_c(to_c(std::move(device)), info) : std::move(device);
  }

  const std::unique_ptr<Device> device_ = make();
};

INSTANTIATE_TEST_SUITE_P(Sides, EveryDouble, ::testing::Values(false, true),
                         [](const auto& one) { return one.param ? "Plain" : "Itself"; });

TEST_P(EveryDouble, CopiesEveryStridedCase) {
  Staging staging(*device_);
  expect_transposes(strided_copy_on(staging));
  expect_random_copies(strided_copy_on(staging), 200);
}

TEST_P(EveryDouble, CastsEveryPairAsTheCpuDoes) { expect_casts_of_the_cpu(*device_); }

TEST_P(EveryDouble, OrdersStreamsByEvents) { expect_events_order_streams(*device_); }

TEST_P(EveryDouble, LimitsItsMemory) { expect_memory_is_limited(*device_); }

TEST_P(EveryDouble, SendsToItself) { expect_link_of_one_rank(*device_); }

class Double : public ::testing::Test {
 protected:
  DeviceDouble device_{DoubleOptions{}};
};

TEST_F(Double, ShowsAMissingWaitAsWrongBytes) {
  const auto host = device_.allocate_pinned(64), back = device_.allocate_pinned(64);
  const auto memory = device_.allocate(64);
  const auto in = device_.make_stream(), out = device_.make_stream();
  std::memset(host->data(), 'a', 64);
  in->copy_in(memory->data(), host->data(), 64);
  out->copy_out(back->data(), memory->data(), 64);
  out->synchronize();
  EXPECT_NE(static_cast<char>(back->data()[0]), 'a') << "the streams know nothing of each other";
  in->synchronize();
  EXPECT_EQ(static_cast<char>(memory->data()[0]), 'a');
}

TEST_F(Double, RefusesAddressesThatAreNotItsOwn) {
  const auto pinned = device_.allocate_pinned(64);
  const auto memory = device_.allocate(64);
  const auto stream = device_.make_stream();
  std::byte other[64];
  EXPECT_THROW(stream->copy_in(memory->data(), other, 64), std::logic_error);
  EXPECT_THROW(stream->copy_in(memory->data() + 1, pinned->data(), 64), std::logic_error);
  EXPECT_THROW(stream->copy_out(pinned->data(), pinned->data(), 64), std::logic_error);
}

}  // namespace
}  // namespace shard::testing

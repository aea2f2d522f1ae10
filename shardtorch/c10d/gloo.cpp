#include "shardtorch/c10d/gloo.h"

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "shardtorch/c10d/c10d_group.h"
#include "shardtorch/c10d/without_sigpipe.h"

namespace shard {

namespace {

/// Gloo multiplies the timeout by five while it connects.
constexpr int kConnectFactor = 5;

/// The flight recorder of torch 2.11 exists once per process. It has a race if threads use several Gloo groups at once,
/// as a background save does. Therefore it is off unless the environment sets it.
void keep_flight_recorder_off() {
  static const int done = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  static_cast<void>(done);
}

}  // namespace

std::shared_ptr<::gloo::transport::Device> gloo_device(bool is_one_host) {
  const WithoutSigpipe in_its_thread;
  if (const char* const interface = std::getenv("GLOO_SOCKET_IFNAME"); interface != nullptr && *interface != '\0') {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  return is_one_host ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                     : c10d::ProcessGroupGloo::createDefaultDevice();
}

std::unique_ptr<Group> make_gloo_group(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                       std::shared_ptr<::gloo::transport::Device> device,
                                       std::chrono::milliseconds timeout) {
  std::unique_ptr<Group> group;
  keep_flight_recorder_off();
  const WithoutSigpipe in_all_its_threads;
  as_errors("the rendezvous", [&] {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout / kConnectFactor);
    options->devices.push_back(std::move(device));
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    group = std::make_unique<C10dGroup>(gloo, "gloo", at::kCPU, timeout, std::move(store));
    group->barrier();  // A rank that ends at once would be missed by a rank that still connects to others.
  });
  return group;
}

}  // namespace shard

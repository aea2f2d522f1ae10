// libshard_torch.so's entry: a Group over c10d's Gloo backend.
#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "libshard/dist/plugin.h"
#include "libshard/torch/c10d/c10d_group.h"

namespace shard {

namespace {

/// Gloo multiplies the timeout by five while it connects.
constexpr int kConnectFactor = 5;

std::shared_ptr<::gloo::transport::Device> device_for(const Launch& launch) {
  if (const char* const interface = std::getenv("GLOO_SOCKET_IFNAME"); interface != nullptr && *interface != '\0') {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (launch.local_size >= launch.size) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

Group* make_gloo_group(const GroupRequest& request) {
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);  // Its warnings repeat what our errors say.
  c10::initLogging();
  Group* group = nullptr;
  as_errors("the rendezvous", [&] {
    auto options = c10d::ProcessGroupGloo::Options::create(request.timeout / kConnectFactor);
    options->devices.push_back(device_for(request.launch));
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(make_store(request.launch, request.timeout),
                                                            request.launch.rank, request.launch.size, options);
    group = new C10dGroup(gloo, "gloo", at::kCPU, request.timeout);
  });
  return group;
}

}  // namespace

}  // namespace shard

extern "C" shard::Group* shard_make_group_1(const shard::GroupRequest& request) {
  return shard::make_gloo_group(request);
}

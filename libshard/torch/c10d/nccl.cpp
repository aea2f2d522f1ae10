// libshard_nccl.so's entry: a Group over c10d's NCCL backend, one GPU a rank.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "libshard/core/error.h"
#include "libshard/dist/plugin.h"
#include "libshard/torch/c10d/c10d_group.h"

namespace shard {

namespace {

Group* make_nccl_group(const GroupRequest& request) {
  const Launch& launch = request.launch;
  const int devices = static_cast<int>(c10::cuda::device_count());
  if (devices < launch.local_size) {
    throw Error(ErrorCode::kUnsupported, "--backend nccl with " + std::to_string(launch.local_size) + " local ranks on " + std::to_string(devices) + " GPUs")
        .because("NCCL wants a GPU of its own for each rank")
        .expected("at least " + std::to_string(launch.local_size) + " GPUs")
        .found(devices)
        .hint("use --backend gloo");
  }
  Group* group = nullptr;
  as_errors("the rendezvous", [&] {
    const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(launch.local_rank));
    c10::cuda::set_device(device.index());
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = request.timeout;
    auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(make_store(launch, request.timeout), launch.rank,
                                                            launch.size, options);
    nccl->setBoundDeviceId(device);
    group = new C10dGroup(nccl, "nccl", device, request.timeout);
  });
  return group;
}

}  // namespace

}  // namespace shard

extern "C" shard::Group* shard_make_group_1(const shard::GroupRequest& request) {
  return shard::make_nccl_group(request);
}

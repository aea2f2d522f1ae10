// Entries of libshard_nccl.so: Groups over c10d's NCCL backend, one GPU per rank.
#include "shardtorch/c10d/nccl.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "libshard/core/error.h"
#include "libshard/ranks/plugin.h"
#include "shardtorch/c10d/c10d_group.h"
#include "shardtorch/c10d/libtorch_version.h"

namespace shard {

namespace {

/// A group on the current CUDA device.
Group* form_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout) {
  const at::Device device(at::kCUDA, c10::cuda::current_device());
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  nccl->setBoundDeviceId(device);
  return new C10dGroup(nccl, "nccl", device, timeout, store, FailureNews::kByTimeout);
}

void check_devices(const Launch& launch) {
  const int devices = static_cast<int>(c10::cuda::device_count());
  if (devices >= launch.local_size) return;
  throw Error(ErrorCode::kUnsupported, "backend 'nccl' cannot serve " + std::to_string(launch.local_size) +
                                           " local ranks on " + std::to_string(devices) + " GPUs")
      .because("NCCL needs a separate GPU for each rank")
      .expected("at least " + std::to_string(launch.local_size) + " GPUs")
      .found(devices)
      .suggest(Remedy::kUseBackend, "gloo");
}

std::unique_ptr<Group> form_launched_group(const GroupRequest& request) {
  check_libtorch("nccl");
  const Launch& launch = request.launch;
  check_devices(launch);
  std::unique_ptr<Group> group;
  as_errors("the rendezvous", [&] {
    c10::cuda::set_device(static_cast<at::DeviceIndex>(launch.local_rank));
    group.reset(form_group(make_store(launch, request.timeout), launch.rank, launch.size, request.timeout));
  });
  return group;
}

}  // namespace

}  // namespace shard

extern "C" bool shard_make_group_2(shard::ConstBytes request, shard::CGroup* made, const shard::ErrorSink* errors) {
  return shard::make_c_group(request, made, errors, shard::form_launched_group);
}

extern "C" shard::Group* shard_make_nccl_group_1(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                 std::chrono::milliseconds timeout) {
  shard::Group* group = nullptr;
  shard::as_errors("the rendezvous", [&] { group = shard::form_group(store, rank, size, timeout); });
  return group;
}

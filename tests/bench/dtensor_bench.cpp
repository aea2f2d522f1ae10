// One rank of the C++ side of dtensor.py: dtensor_bench MIB STORE_FILE RANK RANKS. Reads names of operations from
// standard input and prints the seconds that each took, barrier to barrier, and those of the processor on this rank.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/sharded_tensor/factories.h"

namespace dt = shard::dtensor;

namespace {

using Sizes = std::vector<std::int64_t>;
using Operation = std::function<at::Tensor()>;

shard::ShardingSpecPtr chunks(std::int64_t dim) {
  std::vector<shard::RemoteDevice> placements;
  for (int rank = 0; rank < shard::default_group()->size(); ++rank) placements.emplace_back(rank, at::kCPU);
  return shard::chunk_spec(dim, placements);
}

/// Prepares the operation, and returns the function to time.
std::map<std::string, std::function<Operation()>> operations(const Sizes& size) {
  const dt::DeviceMeshPtr mesh = dt::init_device_mesh(at::kCPU, {shard::default_group()->size()});
  const auto full = [=](std::int64_t dim) {
    return [=]() -> Operation {
      return [tensor = dt::full(size, 1, mesh, {dt::Shard{dim}})] { return tensor.full_tensor(); };
    };
  };
  return {{"full_tensor-rows", full(0)},
          {"full_tensor-columns", full(1)},
          {"rows-columns",
           [=]() -> Operation {
             return [tensor = dt::full(size, 1, mesh, {dt::Shard{0}})] {
               return tensor.redistribute({dt::Shard{1}}).local();
             };
           }},
          {"reshard", [=]() -> Operation {
             return [tensor = shard::sharded_tensor::ones(chunks(0), size)]() mutable {
               return tensor.reshard(chunks(1)).local_tensor();
             };
           }}};
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return EXIT_FAILURE;
  const std::int64_t mib = std::atoll(argv[1]);
  const int rank = std::atoi(argv[3]), ranks = std::atoi(argv[4]);
  at::set_num_threads(1);
  shard::init_process_group(shard::make_c10d_world("gloo", c10::make_intrusive<c10d::FileStore>(argv[2], ranks), rank,
                                                   ranks, std::chrono::minutes(10)));
  const auto known = operations({4096, mib * 64});  // float32
  for (std::string name; std::getline(std::cin, name);) {
    const Operation operation = known.at(name)();
    shard::default_group()->barrier();
    const auto begin = std::chrono::steady_clock::now();
    const double worked = processor_seconds();
    const at::Tensor result = operation();
    shard::default_group()->barrier();
    std::cout << std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() << ' '
              << processor_seconds() - worked << std::endl;
  }
  return EXIT_SUCCESS;
}

// One rank of the C++ side of dtensor.py: dtensor_bench MIB STORE_FILE RANK RANKS. Reads names of operations from
// standard input and prints the seconds that each took, barrier to barrier.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "shardtorch/dtensor/dtensor.h"

namespace dt = shard::dtensor;

int main(int argc, char** argv) {
  if (argc != 5) return EXIT_FAILURE;
  const std::int64_t mib = std::atoll(argv[1]);
  const int rank = std::atoi(argv[3]), ranks = std::atoi(argv[4]);
  at::set_num_threads(1);
  shard::init_process_group(shard::make_c10d_world("gloo", c10::make_intrusive<c10d::FileStore>(argv[2], ranks), rank,
                                                   ranks, std::chrono::minutes(10)));
  const dt::DeviceMeshPtr mesh = dt::init_device_mesh(at::kCPU, {ranks});
  const std::vector<std::int64_t> size{4096, mib * 64};  // float32
  const std::map<std::string, std::int64_t> cut_by{
      {"full_tensor-rows", 0}, {"full_tensor-columns", 1}, {"rows-columns", 0}};
  for (std::string operation; std::getline(std::cin, operation);) {
    const dt::DTensor tensor = dt::full(size, 1, mesh, {dt::Shard{cut_by.at(operation)}});
    shard::default_group()->group().barrier();
    const auto begin = std::chrono::steady_clock::now();
    const at::Tensor result =
        operation == "rows-columns" ? tensor.redistribute({dt::Shard{1}}).local() : tensor.full_tensor();
    shard::default_group()->group().barrier();
    std::cout << std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() << std::endl;
  }
  return EXIT_SUCCESS;
}

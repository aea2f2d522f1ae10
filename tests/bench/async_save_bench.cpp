// The C++ side of async_save.py: async_save_bench FOLDER MIB. For each line of standard input, trains alone and then
// beside an async_save of the model and of MIB of other tensors, and prints the seconds of a step alone, of one beside,
// of the call and of the whole save. One thread computes.
#include <ATen/Parallel.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "shardtorch/checkpoint/async_save.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/process_group.h"

namespace {

constexpr std::int64_t kWidth = 1024, kBatch = 256;
constexpr int kStepsAlone = 25;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// A small model of four layers.
class Training {
 public:
  explicit Training(std::int64_t mib) {
    for (int i = 0; i < 4; ++i) {
      model_->push_back(torch::nn::Linear(kWidth, kWidth));
      model_->push_back(torch::nn::ReLU());
    }
    state_ = shard::state_dict(*model_);
    for (std::int64_t i = 0; i < 8; ++i) state_.insert(c10::str("other", i), at::rand({mib / 8, 1 << 18}));
  }

  void step() {
    optimizer_.zero_grad();
    model_->forward(input_).square().mean().backward();
    optimizer_.step();
  }
  const shard::StateDict& state() const { return state_; }

 private:
  torch::nn::Sequential model_;
  torch::optim::SGD optimizer_{model_->parameters(), 0.01};
  const at::Tensor input_ = at::rand({kBatch, kWidth});
  shard::StateDict state_;
};

void round(Training& training, const std::string& folder) {
  const double begin = now();
  for (int i = 0; i < kStepsAlone; ++i) training.step();
  const double called = now();
  const shard::checkpoint::AsyncSave save = shard::checkpoint::async_save(training.state(), folder);
  const double returned = now();
  double last = returned;
  int steps = 0;
  for (training.step(); !save.is_done(); training.step(), ++steps) last = now();
  save.wait();
  std::printf("%.5f %.5f %.3f %.3f\n", (called - begin) / kStepsAlone, (last - returned) / steps, returned - called,
              last - called);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    at::set_num_threads(1);
    shard::init_process_group("gloo");
    Training training(std::atoll(argv[2]));
    for (std::string line; std::getline(std::cin, line);) round(training, argv[1]);
    shard::destroy_process_group();
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", shard::message_of(error).c_str());
    return EXIT_FAILURE;
  }
}

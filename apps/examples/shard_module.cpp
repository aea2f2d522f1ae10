// Shards a small module over the ranks of a job, saves it, and loads it on a different number of ranks:
//
//     torchrun --standalone --no-python --nproc-per-node 4 shard_module save checkpoint/
//     mpirun -n 2 shard_module load checkpoint/
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "shardtorch/checkpoint/checkpoint.h"
#include "shardtorch/sharded_tensor/modules.h"

namespace {

constexpr std::chrono::seconds kTimeout{60};

/// The ranks that the launcher started, as the default group.
class Job {
 public:
  Job() { shard::init_process_group("gloo", {.timeout = kTimeout}); }
  ~Job() { shard::destroy_process_group(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return shard::default_group()->rank(); }
  int size() const { return shard::default_group()->size(); }
};

struct Net : torch::nn::Module {
  Net() {
    register_module("hidden", hidden);
    register_module("output", output);
  }
  torch::nn::Linear hidden{16, 18}, output{18, 8};
};

/// The same weights on all ranks and in every run.
Net trained() {
  at::manual_seed(1234);
  return {};
}

/// Shards the first weight by rows and the second by columns. Each rank keeps whole biases.
void shard_weights(Net& net) {
  shard::shard_parameter(*net.hidden, "weight", net.hidden->weight, shard::chunk_spec(0));
  shard::shard_parameter(*net.output, "weight", net.output->weight, shard::chunk_spec(1));
}

void save(const Job& job, const std::string& folder) {
  Net net = trained();
  shard_weights(net);
  shard::checkpoint::save(shard::state_dict(net), folder, nullptr, {.force = true});
  if (job.rank() == 0) std::printf("saved by %d ranks: %s\n", job.size(), folder.c_str());
}

void load(const Job& job, const std::string& folder) {
  Net net;  // Its weights differ from the saved ones.
  shard_weights(net);
  shard::StateDict state = shard::state_dict(net);
  const shard::checkpoint::LoadResult result = shard::checkpoint::load(state, folder);
  const at::Tensor hidden = shard::ShardedTensor::of(net.hidden->weight).gather_to(0),
                   output = shard::ShardedTensor::of(net.output->weight).gather_to(0);
  if (job.rank() != 0) return;
  const Net expected = trained();
  const bool is_same = hidden.equal(expected.hidden->weight) && net.hidden->bias.equal(expected.hidden->bias) &&
                       output.equal(expected.output->weight) && net.output->bias.equal(expected.output->bias);
  if (!is_same) throw std::runtime_error("the loaded weights are not those that were saved");
  std::printf("loaded by %d ranks, the weights are the same; rank 0 read %lld bytes\n", job.size(),
              static_cast<long long>(result.bytes_read));
}

int run(const std::string& verb, const std::string& folder) {
  const Job job;
  if (verb == "save") {
    save(job, folder);
  } else {
    load(job, folder);
  }
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc == 3 ? argv[1] : "";
  if (verb != "save" && verb != "load") {
    std::fprintf(stderr, "usage: shard_module save|load FOLDER, on as many ranks as the launcher starts\n");
    return 2;
  }
  try {
    return run(verb, argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shard_module: error: %s\n", shard::message_of(error).c_str());
  }
  return EXIT_FAILURE;
}

// Times ShardedTensors with a state of some MiB, on the ranks of a job: save, the same without fsync, load, load under
// a different sharding, reshard, gather. Rank 0 prints one line per operation and run: its name and the slowest rank's
// seconds.
//
//   state_bench FOLDER MIB RUNS    (in the environment of a launcher: see state.py)
#include <ATen/ATen.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "shardtorch/checkpoint/checkpoint.h"
#include "shardtorch/sharded_tensor/collectives.h"
#include "shardtorch/sharded_tensor/factories.h"

namespace {

constexpr std::int64_t kTensors = 16;

/// Square float32 matrices.
shard::StateDict make_state(std::int64_t mib, std::int64_t dim) {
  const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>((mib << 20) / kTensors / 4)));
  shard::StateDict state;
  for (std::int64_t i = 0; i < kTensors; ++i) {
    state.insert(c10::str("w", i), shard::sharded_tensor::rand(shard::chunk_spec(dim), {side, side}).as_tensor());
  }
  return state;
}

void time(const char* name, const std::function<void()>& body) {
  const shard::ProcessGroupPtr world = shard::default_group();
  world->barrier();
  const auto begin = std::chrono::steady_clock::now();
  body();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  const at::Tensor slowest = at::scalar_tensor(taken.count(), at::kDouble);
  shard::all_reduce(slowest, shard::ReduceOp::kMax);
  if (world->rank() == 0) std::printf("%s %.4f\n", name, slowest.item<double>());
}

void gather_all(const shard::StateDict& state) {
  for (const auto& item : state) shard::ShardedTensor::of(item.value().toTensor()).gather_to(0);
}

void run(const std::string& folder, std::int64_t mib) {
  shard::StateDict rows = make_state(mib, 0), columns = make_state(mib, 1);
  time("save", [&] { shard::checkpoint::save(rows, folder); });
  time("save_unsynced", [&] { shard::checkpoint::save(rows, folder, nullptr, {.force = true, .sync = false}); });
  time("load", [&] { shard::checkpoint::load(rows, folder); });
  time("load_columns", [&] { shard::checkpoint::load(columns, folder); });
  time("gather", [&] { gather_all(rows); });
  time("reshard", [&] {
    for (const auto& item : rows) shard::ShardedTensor::of(item.value().toTensor()).reshard(shard::chunk_spec(1));
  });
  if (shard::default_group()->rank() == 0) std::filesystem::remove_all(folder);
  shard::default_group()->barrier();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    shard::init_process_group("gloo");
    for (int i = 0; i < std::atoi(argv[3]); ++i) run(argv[1], std::atoll(argv[2]));
    shard::destroy_process_group();
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", shard::message_of(error).c_str());
    return EXIT_FAILURE;
  }
}

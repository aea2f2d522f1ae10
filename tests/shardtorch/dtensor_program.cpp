// One rank of a job that exchanges DTensors with Python, for dtensor_with_python.py: dtensor_program
// save|save-ranks|load|save-state|load-state FOLDER STORE_FILE RANK WORLD_SIZE. `save` writes a DCP folder,
// `save-ranks` one of torch-ranks, `load` reads both; the others use a file of torch.save for each rank. Tensors count
// their elements; loaded tensors are compared with that. Exit code 1 names the first that differs.
#include <ATen/ATen.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "libshard/core/error.h"
#include "shardtorch/checkpoint/checkpoint.h"
#include "shardtorch/dtensor/dtensor.h"

namespace {

namespace dt = shard::dtensor;
using shard::StateDict;

struct Case {
  std::string name;
  std::vector<std::int64_t> shape;
  at::ScalarType dtype;
  dt::DeviceMeshPtr mesh;
  dt::Placements placements;
};

/// The meshes come in the order in which the state has them.
std::vector<Case> cases(int ranks) {
  const dt::DeviceMeshPtr square = dt::init_device_mesh(at::kCPU, {2, ranks / 2}, {"dp", "tp"});
  const dt::DeviceMeshPtr line = dt::init_device_mesh(at::kCPU, {ranks}, {"all"});
  return {{"blocks", {7, 5}, at::kBFloat16, square, {dt::Shard{0}, dt::Shard{1}}},
          {"nested", {9, 2}, at::kLong, square, {dt::Shard{0}, dt::Shard{0}}},
          {"replica", {4, 6}, at::kFloat, square, {dt::Replicate(), dt::Shard{1}}},
          {"whole", {3, 3}, at::kDouble, square, {dt::Replicate(), dt::Replicate()}},
          {"strided", {8, 3}, at::kFloat, square, {dt::StridedShard{0, ranks / 2}, dt::Shard{0}}},
          {"scalar", {}, at::kFloat, line, {dt::Replicate()}},
          {"few", {2, 3}, at::kInt, line, {dt::Shard{0}}},
          {"rows", {10, 6}, at::kFloat, line, {dt::Shard{0}}}};
}

at::Tensor counted(const Case& each) {
  return at::arange(c10::multiply_integers(each.shape), at::kLong).reshape(each.shape).to(each.dtype);
}

StateDict make_state(const std::vector<Case>& all, bool filled) {
  StateDict state;
  for (const Case& each : all) {
    const at::Tensor whole = filled ? counted(each) : at::full(each.shape, 99, each.dtype);
    state.insert(each.name, dt::distribute_tensor(whole, each.mesh, each.placements).as_tensor());
  }
  state.insert("step", 7);
  return state;
}

bool is_counted(const StateDict& state, const std::vector<Case>& all) {
  for (const Case& each : all) {
    const auto tensor = dt::DTensor::of(state[each.name].toTensor());
    const bool is_right = tensor.defined() && tensor.placements() == each.placements &&
                          *tensor.device_mesh() == *each.mesh && tensor.full_tensor().equal(counted(each));
    if (is_right) continue;
    std::cerr << each.name << " differs: " << tensor << '\n' << tensor.local() << '\n';
    return false;
  }
  return state["step"].toInt() == 7;
}

bool run(const std::string& verb, const std::string& folder, int rank, int ranks) {
  const std::vector<Case> all = cases(ranks);
  const std::string file = folder + "/rank-" + std::to_string(rank) + ".pt";
  if (verb == "save" || verb == "save-ranks") {
    const std::string format = verb == "save" ? "dcp" : "torch-ranks";
    shard::checkpoint::save(make_state(all, true), folder, nullptr, {.format = format});
    return true;
  }
  if (verb == "save-state") {
    shard::save_state_file(make_state(all, true), file);
    return true;
  }
  StateDict state = make_state(all, false);
  verb == "load" ? void(shard::checkpoint::load(state, folder)) : void(state = shard::load_state_file(file));
  return is_counted(state, all);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return EXIT_FAILURE;
  const std::string verb = argv[1], folder = argv[2], store = argv[3];
  const int rank = std::atoi(argv[4]), ranks = std::atoi(argv[5]);
  try {
    shard::init_process_group(shard::make_c10d_world("gloo", c10::make_intrusive<c10d::FileStore>(store, ranks), rank,
                                                     ranks, std::chrono::seconds(60)));
    const bool is_right = run(verb, folder, rank, ranks);
    shard::default_group()->barrier();
    shard::destroy_process_group();
    return is_right ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const shard::Error& error) {
    std::cerr << error.what() << ": " << error.why() << '\n';
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
  }
  return EXIT_FAILURE;
}

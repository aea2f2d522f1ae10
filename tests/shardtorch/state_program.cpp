// One rank of a job that exchanges states with Python (state_with_python.py): `state_program VERB FOLDER`.
//
// The environment contains RANK, WORLD_SIZE and STORE (the path of a file for the rendezvous). `save` writes
// FOLDER/world-<rank>.pt and FOLDER/group-<rank>.pt, `check` loads them and compares them with a new state; the same
// with modules (save-modules, check-modules) and remote shards (save-remote, check-remote). `validate` and related
// verbs load files that were saved under different ranks, which must be refused. Exit 1 if there is a difference.

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "shardtorch/rpc/rpc.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/modules.h"
#include "shardtorch/sharded_tensor/ops.h"
#include "shardtorch/state/state_dict.h"

namespace shard {
namespace {

/// The element at row-major position i is i.
at::Tensor counted(at::IntArrayRef size, at::ScalarType dtype) {
  return at::arange(c10::multiply_integers(size)).reshape(size).to(dtype);
}

ShardedTensor counted(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options) {
  const ShardedTensor tensor = sharded_tensor::empty(std::move(spec), size, options);
  const at::NoGradGuard no_grad;
  for (const Shard& shard : tensor.local_shards()) {
    at::Tensor(shard.tensor).copy_(narrow_tensor(counted(size, tensor.dtype()), shard.metadata));
  }
  return tensor;
}

std::vector<RemoteDevice> on_cpus(const std::vector<int>& ranks) {
  std::vector<RemoteDevice> placements;
  for (const int rank : ranks) placements.emplace_back(rank, at::Device(at::kCPU));
  return placements;
}

/// Rank 0 has two boxes, rank 3 none.
ShardingSpecPtr boxes() {
  return enumerable_spec({{{0, 0}, {8, 2}, "rank:0/cpu"},
                          {{0, 2}, {3, 4}, "rank:0/cpu"},
                          {{3, 2}, {5, 2}, "rank:1/cpu"},
                          {{3, 4}, {5, 2}, "rank:2/cpu"}});
}

c10::IValue nested() {
  c10::impl::GenericList flags(c10::AnyType::get());
  for (const c10::IValue& flag : {c10::IValue(true), c10::IValue(), c10::IValue(-3)}) flags.push_back(flag);
  c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
  dict.insert("step", std::int64_t{1} << 40);
  dict.insert("lr", 0.5);
  dict.insert("name", "naïve");
  dict.insert("flags", flags);
  dict.insert("pair", c10::ivalue::Tuple::create(std::vector<c10::IValue>{1, "x"}));
  dict.insert(5, at::full({2}, 2.5));
  dict.insert("phase", c10::complex<double>(1, -2));
  return dict;
}

/// The state_dict of a Linear.
c10::IValue layer() {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
  dict.insert("weight", counted({2, 3}, at::kFloat));
  dict.insert("bias", counted({2}, at::kFloat));
  return dict;
}

StateDict world_state(int rank) {
  StateDict state;
  state.insert("rows", counted(chunk_spec(0, on_cpus({0, 1, 2, 3})), {10, 20}, {}).as_tensor());
  state.insert("columns", counted(chunk_spec(-1, on_cpus({2, 0, 3, 1})), {3, 9}, {.dtype = at::kLong}).as_tensor());
  const CreateOptions trained{.dtype = at::kBFloat16, .requires_grad = true};
  state.insert("boxes", counted(boxes(), {8, 6}, trained).as_tensor());
  const at::Tensor base = counted({3, 4}, at::kInt);
  state.insert("base", base);
  state.insert("view", base.slice(1, 1, 3));
  state.insert("transposed", counted({2, 3}, at::kDouble).t());
  state.insert("conjugated", at::complex(counted({3}, at::kFloat), counted({3}, at::kFloat)).conj());
  state.insert("trained", at::ones({2, 2}).requires_grad_());
  state.insert("rank", rank);
  state.insert("nested", nested());
  state.insert("layer", layer());
  return state;
}

StateDict group_state(const ProcessGroupPtr& group) {
  const CreateOptions options{.dtype = at::kDouble, .process_group = group};
  StateDict state;
  state.insert("of_group", counted(chunk_spec(0, on_cpus({2, 3, 2, 3})), {10, 4}, options).as_tensor());
  return state;
}

// --- Comparing ------------------------------------------------------------------------------------------------------

void expect(bool is_true, const std::string& what) {
  if (!is_true) throw std::runtime_error(what + " differs");
}

bool is_same_tensor(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.strides() == b.strides() && a.requires_grad() == b.requires_grad() &&
         at::equal(a, b);
}

void compare(const ShardedTensor& found, const ShardedTensor& wanted, const std::string& name) {
  expect(found.metadata() == wanted.metadata(), name + ": " + found.str());
  expect(found.sharding_spec()->str() == wanted.sharding_spec()->str(), name + ": " + found.sharding_spec()->str());
  expect(found.process_group() == wanted.process_group(), name + "'s group");
  expect(found.local_shards().size() == wanted.local_shards().size(), name + "'s number of shards");
  for (std::size_t i = 0; i < wanted.local_shards().size(); ++i) {
    expect(is_same_tensor(found.local_shards()[i].tensor, wanted.local_shards()[i].tensor), name + "'s shard");
  }
}

/// The loaded tensor is alive: its ranks can gather it.
void compare_gathered(const ShardedTensor& found, const std::string& name) {
  const ProcessGroup& group = *found.process_group();
  if (!group.is_member()) return;
  const at::Tensor whole = counted(found.sizes(), found.dtype());
  std::optional<at::Tensor> out;
  if (group.rank() == 0) out = at::zeros_like(whole);
  found.gather(0, out);
  if (out) expect(at::equal(*out, whole), name + ", gathered,");
}

void compare(const c10::IValue& found, const c10::IValue& wanted, const std::string& name) {
  if (!wanted.isTensor())
    return expect(found.tagKind() == wanted.tagKind() && c10::str(found) == c10::str(wanted), name);
  expect(found.isTensor(), name);
  const ShardedTensor sharded = ShardedTensor::of(wanted.toTensor());
  if (!sharded.defined()) return expect(is_same_tensor(found.toTensor(), wanted.toTensor()), name);
  const ShardedTensor loaded = ShardedTensor::of(found.toTensor());
  expect(loaded.defined(), name);
  compare(loaded, sharded, name);
  compare_gathered(loaded, name);
}

void compare(const StateDict& found, const StateDict& wanted) {
  expect(found.keys() == wanted.keys(), "the list of names");
  for (const auto& item : wanted) compare(found[item.key()], item.value(), item.key());
}

void compare_sharing(const StateDict& found) {
  const at::Tensor view = found["view"].toTensor();
  expect(found["base"].toTensor().storage().is_alias_of(view.storage()), "the view's storage");
}

// --- Main -----------------------------------------------------------------------------------------------------------

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set");
  return value;
}

std::string path(const std::string& folder, const char* kind, int rank) {
  return c10::str(folder, "/", kind, "-", rank, ".pt");
}

// --- Files of other ranks -------------------------------------------------------------------------------------------

void expect_refused(const std::string& file, const std::string& text, const ProcessGroupPtr& group = nullptr) {
  std::optional<LoadWithProcessGroup> scope;
  if (group != nullptr) scope.emplace(group);
  try {
    load_state_file(file);
  } catch (const c10::Error& error) {
    return expect(error.msg().find(text) != std::string::npos, file + ": '" + error.msg() + "'");
  }
  throw std::runtime_error(file + " was loaded, expected: " + text);
}

void validate(const std::string& folder) {
  const int rank = default_group()->rank(), other = (rank + 1) % 4, saved = rank >= 2 ? rank - 2 : -1;
  const auto ranks = [](int before, int now) {
    return c10::str("Local rank at save time was ", before, ", but at load time was ", now);
  };
  expect_refused(path(folder, "world", other), ranks(other, rank));
  const std::string of_group = path(folder, "group", rank);
  expect_refused(of_group, ranks(saved, rank));
  const ProcessGroupPtr alone = new_group({2});
  if (rank == 2) {
    expect_refused(of_group, "Local world size at save time was 2, but at load time was 1", alone);
  }
  if (rank == 3) expect_refused(of_group, ranks(1, -1), alone);
}

/// On three ranks.
void validate_in_a_smaller_world(const std::string& folder) {
  const int rank = default_group()->rank();
  const ProcessGroupPtr group = new_group({2});
  if (rank == 2) return;
  expect_refused(path(folder, "group", rank), "Global world size at save time was 4, but at load time was 3", group);
}

// --- Modules --------------------------------------------------------------------------------------------------------

/// A sharded attribute, and a second one inside the first such module.
struct Model : torch::nn::Module, ShardedAttributes {
  explicit Model(bool is_filled, int depth = 1) {
    if (is_filled) tensor = counted(chunk_spec(depth - 1, on_cpus({0, 1, 2, 3})), {10, 8}, {});
    register_sharded_tensor("sharded_tensor" + std::to_string(depth), tensor);
    if (depth == 1) submodule = register_module("submodule", std::make_shared<Model>(is_filled, 2));
  }
  ShardedTensor tensor;
  std::shared_ptr<Model> submodule;
};

torch::nn::Linear sharded_linear(bool is_filled) {
  torch::nn::Linear layer(6, 8);
  {
    const at::NoGradGuard no_grad;
    layer->weight.copy_(is_filled ? counted({8, 6}, at::kFloat) : at::zeros({8, 6}));
    layer->bias.copy_(is_filled ? counted({8}, at::kFloat) : at::zeros({8}));
  }
  shard_parameter(*layer, "weight", layer->weight, chunk_spec(0, on_cpus({0, 1, 2, 3})));
  return layer;
}

void save_modules(const std::string& folder) {
  const int rank = default_group()->rank();
  save_state_file(state_dict(Model(true)), path(folder, "model", rank));
  save_state_file(state_dict(*sharded_linear(true)), path(folder, "linear", rank));
}

void check_modules(const std::string& folder) {
  const int rank = default_group()->rank();
  const Model wanted(true);
  Model found(false);
  load_state_dict(found, load_state_file(path(folder, "model", rank)), /*strict=*/false);
  compare(found.tensor, wanted.tensor, "sharded_tensor1");
  compare(found.submodule->tensor, wanted.submodule->tensor, "submodule.sharded_tensor2");
  torch::nn::Linear layer = sharded_linear(false), full = sharded_linear(true);
  load_state_dict(*layer, load_state_file(path(folder, "linear", rank)));
  expect(equal(ShardedTensor::of(layer->weight), ShardedTensor::of(full->weight)), "the sharded weight");
  expect(layer->bias.equal(full->bias), "the bias");
}

// --- Remote shards --------------------------------------------------------------------------------------------------

void with_rpc(const std::string& folder, void (*body)(const std::string&)) {
  const int rank = default_group()->rank();
  init_rpc(c10::make_intrusive<c10d::PrefixStore>("rpc", default_store()),
           {.name = "worker" + std::to_string(rank), .rank = rank, .world_size = default_group()->size()});
  body(folder);
  default_group()->barrier();
  shutdown_rpc();
}

void save_remote(const std::string& folder) {
  const int rank = default_group()->rank();
  const auto tensor = sharded_tensor::full(chunk_spec(0, on_cpus({0, 1, 2, 3})), {8, 3}, rank, {.init_rrefs = true});
  StateDict state;
  state.insert("remote", tensor.as_tensor());
  save_state_file(state, path(folder, "remote", rank));
  default_group()->barrier();
}

void check_remote(const std::string& folder) {
  const StateDict state = load_state_file(path(folder, "remote", default_group()->rank()));
  const ShardedTensor tensor = ShardedTensor::of(state["remote"].toTensor());
  expect(tensor.remote_shards().size() == 3, "the number of workers with remote shards");
  for (const auto& [owner, shards] : tensor.remote_shards()) {
    expect(shards.size() == 1 && shards[0].to_here().tensor.eq(owner).all().item<bool>(), "a remote shard");
  }
  default_group()->barrier();
}

void save(const std::string& folder) {
  const int rank = default_group()->rank();
  const ProcessGroupPtr group = new_group({2, 3});
  save_state_file(world_state(rank), path(folder, "world", rank));
  save_state_file(group_state(group), path(folder, "group", rank));
}

void check(const std::string& folder) {
  const int rank = default_group()->rank();
  const ProcessGroupPtr group = new_group({2, 3});
  const StateDict found = load_state_file(path(folder, "world", rank));
  compare(found, world_state(rank));
  compare_sharing(found);
  const LoadWithProcessGroup scope(group);
  compare(load_state_file(path(folder, "group", rank)), group_state(group));
}

void run(const std::string& verb, const std::string& folder) {
  if (verb == "validate-alone") {  // Without a group.
    return expect_refused(path(folder, "world", 0), "Need to initialize default process group");
  }
  const int rank = std::stoi(variable("RANK")), size = std::stoi(variable("WORLD_SIZE"));
  const auto store = c10::make_intrusive<c10d::FileStore>(variable("STORE"), size);
  init_process_group(make_c10d_world("gloo", store, rank, size, std::chrono::seconds(60)));
  const std::map<std::string, std::function<void()>> verbs{
      {"save", [&] { save(folder); }},
      {"check", [&] { check(folder); }},
      {"validate", [&] { validate(folder); }},
      {"validate-smaller", [&] { validate_in_a_smaller_world(folder); }},
      {"save-modules", [&] { save_modules(folder); }},
      {"check-modules", [&] { check_modules(folder); }},
      {"save-remote", [&] { with_rpc(folder, save_remote); }},
      {"check-remote", [&] { with_rpc(folder, check_remote); }}};
  verbs.at(verb)();
  default_group()->barrier();
  destroy_process_group();
}

}  // namespace
}  // namespace shard

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: state_program VERB FOLDER\n";
    return 2;
  }
  try {
    shard::run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}

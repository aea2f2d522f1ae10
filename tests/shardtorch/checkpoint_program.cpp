// One rank of a job that saves or loads a checkpoint, for checkpoint_with_python.py: checkpoint_program save|load
// FOLDER FORMAT STORE_FILE RANK WORLD_SIZE. Tensors count their elements; loaded tensors are compared with that. Exit
// code 1 names the first that differs.
#include <ATen/ATen.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "libshard/core/error.h"
#include "shardtorch/checkpoint/checkpoint.h"

namespace {

using shard::RemoteDevice;
using shard::ShardedTensor;
using shard::ShardingSpecPtr;
using shard::ShardMetadata;

std::vector<RemoteDevice> placements(int ranks, bool reversed = false) {
  std::vector<RemoteDevice> all;
  for (int i = 0; i < ranks; ++i) all.emplace_back(reversed ? ranks - 1 - i : i, at::kCPU);
  return all;
}

/// An 8 by 8 matrix as four blocks, assigned to the ranks in turn.
ShardingSpecPtr blocks(int ranks) {
  std::vector<ShardMetadata> shards;
  for (int i = 0; i < 4; ++i) {
    const std::int64_t height = i / 2 == 0 ? 3 : 5, width = i % 2 == 0 ? 6 : 2;
    shards.emplace_back(shard::Sizes{i / 2 * 3, i % 2 * 6}, shard::Sizes{height, width},
                        RemoteDevice(i % ranks, at::kCPU));
  }
  return shard::enumerable_spec(std::move(shards));
}

at::Tensor counted(at::IntArrayRef shape, at::ScalarType type) {
  return at::arange(c10::multiply_integers(shape), at::kLong).reshape(shape).to(type);
}

c10::IValue sharded(at::IntArrayRef shape, at::ScalarType type, const ShardingSpecPtr& spec, bool filled) {
  shard::CreateOptions options;
  options.dtype = type;
  const ShardedTensor tensor(spec, shape, options);
  const at::Tensor whole = filled ? counted(shape, type) : at::full(shape, 99, type);
  for (const shard::Shard& part : tensor.local_shards()) {
    if (part.tensor.numel() > 0) part.tensor.copy_(shard::narrow_tensor(whole, part.metadata));
  }
  return tensor.as_tensor();
}

c10::IValue plain(at::IntArrayRef shape, at::ScalarType type, bool filled) {
  return filled ? counted(shape, type) : at::full(shape, 99, type);
}

shard::StateDict make_state(int ranks, bool saving, bool with_objects) {
  shard::StateDict state;
  state.insert("rows", sharded({10, 6}, at::kFloat, shard::chunk_spec(0, placements(ranks)), saving));
  state.insert("columns", sharded({6, 10}, at::kBFloat16, shard::chunk_spec(1, placements(ranks, true)), saving));
  state.insert("blocks", sharded({8, 8}, at::kLong, blocks(ranks), saving));
  state.insert("few", sharded({2, 3}, at::kInt, shard::chunk_spec(0, placements(ranks)), saving));
  state.insert("plain", plain({3, 5}, at::kHalf, saving));
  state.insert("scalar", saving ? at::scalar_tensor(2.5, at::kDouble) : at::scalar_tensor(0, at::kDouble));
  if (!with_objects) return state;
  c10::impl::GenericDict optimizer(c10::StringType::get(), c10::AnyType::get());
  optimizer.insert("lr", saving ? 0.125 : 0.0);
  optimizer.insert("momentum", plain({4}, at::kFloat, saving));
  state.insert("optimizer", optimizer);
  state.insert("step", saving ? 7 : 0);
  state.insert("sizes", saving ? c10::IValue(std::vector<std::int64_t>{1, 2, 3}) : c10::IValue());
  state.insert("note", saving ? "hello" : "");
  return state;
}

bool is_counted(const at::Tensor& tensor) {
  const ShardedTensor whole = ShardedTensor::of(tensor);
  if (!whole.defined())
    return tensor.dim() == 0 ? tensor.item<double>() == 2.5
                             : tensor.equal(counted(tensor.sizes(), tensor.scalar_type()));
  const at::Tensor expected = counted(whole.sizes(), whole.dtype());
  for (const shard::Shard& part : whole.local_shards()) {
    if (part.tensor.numel() > 0 && !part.tensor.equal(shard::narrow_tensor(expected, part.metadata))) return false;
  }
  return true;
}

/// \throws std::runtime_error  the first name that differs.
void check(const shard::StateDict& state) {
  const auto need = [](bool is_right, const std::string& name) {
    if (!is_right) throw std::runtime_error("'" + name + "' was loaded wrong");
  };
  for (const auto& item : state) {
    if (item.value().isTensor()) need(is_counted(item.value().toTensor()), item.key());
  }
  if (!state.contains("optimizer")) return;
  const c10::impl::GenericDict optimizer = state["optimizer"].toGenericDict();
  need(optimizer.at("lr").toDouble() == 0.125, "optimizer.lr");
  need(is_counted(optimizer.at("momentum").toTensor()), "optimizer.momentum");
  need(state["step"].toInt() == 7, "step");
  need(state["sizes"].toIntVector() == std::vector<std::int64_t>{1, 2, 3}, "sizes");
  need(state["note"].toStringRef() == "hello", "note");
}

void run(const std::string& verb, const std::string& folder, const std::string& format, int ranks) {
  const bool is_save = verb == "save";
  shard::StateDict state = make_state(ranks, is_save, format != "dcp-hf");
  if (is_save) return shard::checkpoint::save(state, folder, nullptr, {.format = format, .sync = false});
  shard::checkpoint::load(state, folder);
  check(state);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const int rank = std::atoi(argv[5]), ranks = std::atoi(argv[6]);
  try {
    const auto store = c10::make_intrusive<c10d::FileStore>(argv[4], ranks);
    shard::init_process_group(shard::make_c10d_world("gloo", store, rank, ranks, std::chrono::seconds(60)));
    run(argv[1], argv[2], argv[3], ranks);
    shard::default_group()->barrier();
    shard::destroy_process_group();
  } catch (const shard::Error& error) {
    std::cerr << "rank " << rank << ": " << error.what() << " [" << error.tensor() << "] expected " << error.expected()
              << " found " << error.found() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "rank " << rank << ": " << error.what() << "\n";
    return 1;
  }
}

#include "tests/support/distributed/sharded_tensor_test.h"

#include <numeric>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "shardtorch/errors.h"
#include "shardtorch/rpc/rpc.h"
#include "tests/support/distributed/python_random.h"

namespace shard::test {
namespace {

/// A FileStore counts its users and removes the file after the last one. Here the test's folder is removed instead.
constexpr int kNobodyCounts = -1;

bool is_backend_name(const std::string& backend) {
  return backend == "nccl" || backend == "gloo" || backend == "mpi" || backend == "hccl";
}

std::string worker_name(int rank) { return "worker" + std::to_string(rank); }

}  // namespace

void ShardedTensorTestBase::set_up() {
  skip_without_gpus();
  MultiProcessTestCase::set_up();
}

void ShardedTensorTestBase::skip_without_gpus() const {
  nccl_skip_if_lt_x_gpu(backend_, world_size());
  if (const at::Device last = device(world_size() - 1); last.is_cuda()) skip_if_lt_x_gpu(last.index() + 1);
}

at::Device ShardedTensorTestBase::device(int of_rank) const {
  const std::string where = variable("SHARD_TEST_DEVICE").value_or(backend_ == "nccl" ? "cuda" : "cpu");
  return where == "cuda" ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(of_rank)) : at::Device(where);
}

void ShardedTensorTestBase::expect_ones_gathered(const ShardedTensor& st, int dst, at::IntArrayRef size) const {
  std::optional<at::Tensor> out;
  if (rank() == dst) out = at::zeros(size, device());
  st.gather(dst, out);
  EXPECT_EQ(out.has_value(), rank() == dst);
  if (out) {
    EXPECT_TRUE(tensors_equal(*out, at::ones(size)));
  }
}

std::vector<RemoteDevice> ShardedTensorTestBase::placements(const std::vector<int>& of_ranks) const {
  std::vector<RemoteDevice> result;
  for (const int of_rank : of_ranks) result.push_back(placement(of_rank));
  return result;
}

std::vector<RemoteDevice> ShardedTensorTestBase::placements() const {
  std::vector<int> all(static_cast<std::size_t>(world_size()));
  std::iota(all.begin(), all.end(), 0);
  return placements(all);
}

RemoteDevice ShardedTensorTestBase::worker_placement(int of_rank) const {
  return RemoteDevice(worker_name(of_rank) + '/' + device(of_rank).str());
}

c10::intrusive_ptr<c10d::Store> ShardedTensorTestBase::store(const std::string& prefix) {
  if (!file_store_) file_store_ = c10::make_intrusive<c10d::FileStore>(file_name(), kNobodyCounts);
  const std::string round = round_ == 0 ? "" : '_' + std::to_string(round_);
  return c10::make_intrusive<c10d::PrefixStore>(prefix + round, file_store_);
}

void ShardedTensorTestBase::init_pg(const std::string& backend) {
  SHARD_CHECK(is_backend_name(backend), "Backend ", backend, " not supported!");
  if (!backend_is_built(backend)) throw Skip(test_skip(backend == "nccl" ? "nccl" : "backend_unavailable"));
  backend_ = backend;
  if (device().is_cuda()) set_cuda_device(device().index());
  init_process_group(make_c10d_world(backend, store("default_pg"), rank(), world_size(), comms_timeout()));
}

std::map<std::string, std::unordered_map<at::Device, at::Device>> ShardedTensorTestBase::rpc_device_maps() const {
  std::map<std::string, std::unordered_map<at::Device, at::Device>> maps;
  for (int other = 0; other < world_size(); ++other) {
    maps[worker_name(other)] = {{device(other), device()}, {device(), device(other)}};
  }
  return maps;
}

void ShardedTensorTestBase::init_rpc() {
  ::shard::init_rpc(store("rpc_prefix_0"), {.name = worker_name(rank()),
                                            .rank = rank(),
                                            .world_size = world_size(),
                                            .timeout = comms_timeout(),
                                            .device_maps = rpc_device_maps()});
}

void ShardedTensorTestBase::init_rpc(const RpcNames& names) {
  ::shard::init_rpc(store("rpc_prefix_0"),
                    {.name = names.name, .rank = names.rank, .world_size = world_size(), .timeout = comms_timeout()});
}

void ShardedTensorTestBase::init_comms(const CommsOptions& options) {
  if (options.rpc) init_rpc();
  init_pg(options.backend);
}

void ShardedTensorTestBase::destroy_comms(bool destroy_rpc) {
  default_group()->barrier();
  if (destroy_rpc) shutdown_rpc();
  destroy_process_group();
  ++round_;
}

void ShardedTensorTestBase::with_comms(const CommsOptions& options, const std::function<void()>& body) {
  backend_ = options.backend;
  skip_without_gpus();
  init_comms(options);
  body();
  if (!HasFailure() && !IsSkipped()) destroy_comms(options.rpc);
}

::testing::AssertionResult sharded_tensors_equal(const ShardedTensor& a, const ShardedTensor& b) {
  const auto different = [](const char* what) { return ::testing::AssertionFailure() << what << " differ"; };
  const std::vector<Shard>&shards_a = a.local_shards(), &shards_b = b.local_shards();
  if (shards_a.size() != shards_b.size()) return different("numbers of local shards");
  for (std::size_t i = 0; i < shards_a.size(); ++i) {
    if (const auto equal = tensors_equal(shards_a[i].tensor, shards_b[i].tensor); !equal) return equal;
    if (shards_a[i].metadata != shards_b[i].metadata) return different("metadata of local shards");
  }
  if (a.metadata() != b.metadata()) return different("metadata");
  if (*a.sharding_spec() != *b.sharding_spec()) return different("sharding specs");
  if (a.remote_shards().size() != b.remote_shards().size()) return different("numbers of remote shards");
  return ::testing::AssertionSuccess();
}

std::vector<ShardingSpecPtr> chunk_sharding_specs_for_test(const std::vector<std::int64_t>& sharding_dims, int seed,
                                                           const std::function<RemoteDevice(int)>& place) {
  std::vector<int> owners{0, 1, 2, 3};  // Shuffled again for each dim.
  std::vector<ShardingSpecPtr> specs;
  for (std::size_t i = 0; i < sharding_dims.size(); ++i) {
    PythonRandom(static_cast<std::uint64_t>(seed) + i).shuffle(owners);
    std::vector<RemoteDevice> placements;
    for (const int owner : owners) placements.push_back(place(owner));
    specs.push_back(chunk_spec(sharding_dims[i], std::move(placements)));
  }
  return specs;
}

MyShardedModel2::MyShardedModel2(ShardingSpecPtr spec, ProcessGroupPtr group, bool init_rrefs) {
  if (spec) {
    sharded_tensor2 =
        sharded_tensor::rand(std::move(spec), {10, 20}, {.process_group = std::move(group), .init_rrefs = init_rrefs});
  }
  register_sharded_tensor("sharded_tensor2", sharded_tensor2);
  random_tensor2 = register_parameter("random_tensor2", at::rand({2, 2}));
}

MyShardedModel1::MyShardedModel1(ShardingSpecPtr spec, ProcessGroupPtr group, bool init_rrefs) {
  if (spec) sharded_tensor1 = sharded_tensor::rand(spec, {10, 20}, {.process_group = group, .init_rrefs = init_rrefs});
  register_sharded_tensor("sharded_tensor1", sharded_tensor1);
  random_tensor1 = register_parameter("random_tensor1", at::rand({2, 2}));
  submodule =
      register_module("submodule", std::make_shared<MyShardedModel2>(std::move(spec), std::move(group), init_rrefs));
}

}  // namespace shard::test

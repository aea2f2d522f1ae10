// Rows of the conformance table that run on GPUs, and further tests, with one rank over NCCL on one GPU. They skip
// without a GPU.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "shardtorch/checkpoint/async_save.h"
#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/parallel/linear.h"
#include "shardtorch/parallel/parameters.h"
#include "shardtorch/sharded_tensor/collectives.h"
#include "shardtorch/sharded_tensor/ops.h"
#include "shardtorch/state/state_dict.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

class OneGpu : public ShardedTensorTestBase {
 public:
  int world_size() const override { return 1; }

 protected:
  void over_nccl(const std::function<void()>& body) { with_comms({.rpc = false, .backend = "nccl"}, body); }
  at::TensorOptions on_gpu(at::ScalarType dtype = at::kFloat) const { return at::device(device()).dtype(dtype); }
};

SHARD_RANKS_TEST(OneGpu, ST013_ST016_ST018_filled_shards) {
  over_nccl([&] {
    const at::Tensor ones = sharded_tensor::ones(rows(), {10, 20}).local_tensor();
    EXPECT_EQ(ones.device(), at::Device("cuda:0"));
    EXPECT_TRUE(tensors_equal(ones, at::ones({10, 20})));
    EXPECT_TRUE(tensors_equal(sharded_tensor::zeros(rows(), {10, 20}).local_tensor(), at::zeros({10, 20})));
    EXPECT_TRUE(tensors_equal(sharded_tensor::full(rows(), {10, 20}, 1234, {.dtype = at::kInt}).local_tensor(),
                              at::full({10, 20}, 1234, at::kInt)));
  });
}

SHARD_RANKS_TEST(OneGpu, ST017_ST019_one_draw_of_the_gpus_generator) {
  over_nccl([&] {
    at::manual_seed(1234);
    const at::Tensor uniform = at::rand({8, 2}, on_gpu(at::kDouble)), normal = at::randn({8, 2}, on_gpu(at::kDouble));
    at::manual_seed(1234);
    const ShardedTensor st = sharded_tensor::rand(rows(), {8, 2}, {.dtype = at::kDouble});
    EXPECT_TRUE(st.local_tensor().equal(uniform));
    EXPECT_TRUE(sharded_tensor::randn_like(st, {.dtype = at::kDouble}).local_tensor().equal(normal));
  });
}

SHARD_RANKS_TEST(OneGpu, ST014_gather) {
  over_nccl([&] {
    const at::Tensor out = at::zeros({10, 20}, on_gpu());
    sharded_tensor::ones(rows(), {10, 20}).gather(0, out);
    EXPECT_TRUE(tensors_equal(out, at::ones({10, 20})));
  });
}

SHARD_RANKS_TEST(OneGpu, ST002_ST004_sharding_tensors_and_parameters) {
  over_nccl([&] {
    const at::Tensor whole = at::rand({12, 12}, on_gpu());
    EXPECT_TRUE(shard_tensor(whole, rows()).local_tensor().equal(whole));
    torch::nn::Linear fc(12, 12);
    fc->to(device());
    const at::Tensor weight = fc->weight.detach().clone();
    EXPECT_TRUE(shard_parameter(*fc, "weight", fc->weight, rows()).local_tensor().equal(weight));
  });
}

SHARD_RANKS_TEST(OneGpu, ST007_reshard) {
  over_nccl([&] {
    ShardedTensor st = sharded_tensor::rand(rows(), {24, 12});
    const at::Tensor before = st.local_tensor();
    const ShardingSpecPtr columns = chunk_spec(1, placements());
    EXPECT_TRUE(st.reshard(columns).local_tensor().equal(before));
    EXPECT_EQ(*st.sharding_spec(), *columns);
  });
}

SHARD_RANKS_TEST(OneGpu, ST038_ST040_UP02_moving_between_cpu_and_gpu) {
  over_nccl([&] {
    const ShardedTensor st = sharded_tensor::zeros(rows(), {10, 20});
    EXPECT_EQ(st.device(), at::Device("cuda:0"));
    const ShardedTensor again = st.cuda();
    EXPECT_FALSE(again.is_same(st));
    EXPECT_TRUE(again.local_tensor().is_same(st.local_tensor()));
    const ShardedTensor on_cpu = st.cpu();
    EXPECT_EQ(on_cpu.metadata().shards_metadata[0].placement->str(), "rank:0/cpu");
    EXPECT_EQ(on_cpu.device(), at::Device("cpu"));
    EXPECT_EQ(on_cpu.cuda().local_tensor().device(), at::Device("cuda:0"));
  });
}

SHARD_RANKS_TEST(OneGpu, ST039_to) {
  over_nccl([&] {
    const ShardedTensor st = sharded_tensor::zeros(rows(), {10, 20});
    EXPECT_TRUE(st.to({.device = at::Device("cuda"), .dtype = st.dtype()}).is_same(st));
    EXPECT_EQ(st.to(at::kHalf).dtype(), at::kHalf);
    EXPECT_EQ(st.to("cpu").to(0).device(), at::Device("cuda:0"));
  });
}

SHARD_RANKS_TEST(OneGpu, ST048_init_from_local_shards) {
  over_nccl([&] {
    const at::Tensor local = at::randn({5, 5}, on_gpu());
    const ShardedTensor st =
        sharded_tensor::init_from_local_shards({Shard(local, ShardMetadata({0, 0}, {5, 5}, placement(0)))}, {5, 5});
    EXPECT_EQ(st.metadata().shards_metadata[0].placement->str(), "rank:0/cuda:0");
    EXPECT_TRUE(st.local_tensor().is_same(local));
  });
}

SHARD_RANKS_TEST(OneGpu, ST051_a_shard_on_another_device) {
  over_nccl([&] {
    SHARD_EXPECT_THROW(Shard(at::randn({5, 5}), ShardMetadata({0, 0}, {5, 5}, placement(0))), c10::ValueError,
                       "Local shard tensor device does not match");
  });
}

SHARD_RANKS_TEST(OneGpu, ST056_custom_op) {
  over_nccl([&] {
    const OpRegistration asin = custom_sharded_op_impl(
        "asin", [](std::string_view, at::ArrayRef<c10::IValue> args, const ProcessGroupPtr&) -> c10::IValue {
          return at::asin(ShardedTensor::of(args[0].toTensor()).local_shards()[0].tensor);
        });
    const ShardedTensor st = sharded_tensor::rand(rows(), {10, 10});
    EXPECT_TRUE(tensors_equal(at::asin(st.as_tensor()), at::asin(st.local_tensor())));
  });
}

SHARD_RANKS_TEST(OneGpu, ST028_state_dict) {
  over_nccl([&] {
    const MyShardedModel1 saved(rows(), nullptr, /*init_rrefs=*/false);
    MyShardedModel1 loaded;
    load_state_dict(loaded, load_state(save_state(state_dict(saved))), /*strict=*/false);
    EXPECT_TRUE(equal(saved.sharded_tensor1, loaded.sharded_tensor1));
    EXPECT_EQ(loaded.submodule->sharded_tensor2.device(), at::Device("cuda:0"));
  });
}

SHARD_RANKS_TEST(OneGpu, UP01_create_tensor) {
  over_nccl([&] {
    const at::Tensor tensor = create_tensor({5, 10}, device(), {at::kDouble});
    EXPECT_EQ(tensor.device(), at::Device("cuda:0"));
    EXPECT_EQ(tensor.scalar_type(), at::kDouble);
  });
}

// --- Beyond the rows ------------------------------------------------------------------------------------------------

SHARD_RANKS_TEST(OneGpu, CheckpointsAreSavedFromItAndLoadedIntoIt) {
  over_nccl([&] {
    const at::Tensor whole = at::rand({2048, 2048}, on_gpu());  // More than one stage.
    const ShardedTensor saved = shard_tensor(whole, rows());
    StateDict state;
    state.insert("w", saved.as_tensor());
    const auto expect_loaded = [&](const std::string& path) {
      const ShardedTensor loaded = sharded_tensor::zeros(chunk_spec(1, placements()), whole.sizes());
      StateDict into;
      into.insert("w", loaded.as_tensor());
      checkpoint::load(into, path);
      EXPECT_EQ(loaded.local_tensor().device(), device());
      EXPECT_TRUE(loaded.local_tensor().equal(whole));
    };
    checkpoint::save(state, file_name() + ".saved");
    expect_loaded(file_name() + ".saved");
    const checkpoint::AsyncSave save = checkpoint::async_save(state, file_name() + ".async");
    saved.local_tensor().zero_();
    save.wait();
    expect_loaded(file_name() + ".async");
  });
}

SHARD_RANKS_TEST(OneGpu, CollectivesAndDTensorsStageNothing) {
  over_nccl([&] {
    const auto numbers = [&](at::ScalarType dtype) { return at::arange(6, on_gpu(at::kLong)).to(dtype).view({2, 3}); };
    for (const at::ScalarType dtype : {at::kByte, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat,
                                       at::kDouble, at::kComplexFloat}) {
      const at::Tensor sum = numbers(dtype);
      all_reduce(sum);
      broadcast(sum, 0);
      EXPECT_TRUE(all_gather(sum, 1).equal(numbers(dtype))) << dtype;
      EXPECT_TRUE(reduce_scatter(sum).equal(numbers(dtype))) << dtype;
    }
    const at::Tensor whole = numbers(at::kDouble);
    const auto mesh = dtensor::init_device_mesh(device().type(), {1});
    const auto columns = dtensor::distribute_tensor(whole, mesh, {dtensor::Shard{1}});
    EXPECT_EQ(columns.local().device(), device());
    EXPECT_TRUE(columns.redistribute({dtensor::Shard{0}}).full_tensor().equal(whole));
    EXPECT_EQ(default_group()->wire_bytes().staged, 0);
  });
}

SHARD_RANKS_TEST(OneGpu, ALayerIsTrainedThere) {
  over_nccl([&] {
    torch::nn::Linear whole(4, 6);
    whole->to(device());
    parallel::ColumnLinear layer(*whole, /*gather_output=*/true);
    const at::Tensor input = at::rand({3, 4}, on_gpu());
    whole->forward(input).square().sum().backward();
    layer->forward(input).square().sum().backward();
    EXPECT_GT(parallel::clip_grad_norm_(*layer, 1e9), 0);
    torch::optim::SGD(whole->parameters(), 0.1).step();
    torch::optim::SGD(parallel::local_parameters(*layer), 0.1).step();
    const at::Tensor local = ShardedTensor::of(layer->weight).local_tensor().detach();
    EXPECT_EQ(local.device(), device());
    EXPECT_TRUE(tensors_equal(local, whole->weight.detach()));
  });
}

}  // namespace
}  // namespace shard::test

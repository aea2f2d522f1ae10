// ShardedTensors under enumerable specs, and moved ones: rows ST-033, 035 to 041 and UP-02 of the conformance table.
#include <ATen/ATen.h>

#include "tests/support/distributed/layouts.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

class ShardedTensorEnumerable : public ShardedTensorTestBase {
 protected:
  /// Placements of all ranks, for shards on the CPU.
  static ProcessGroupPtr gloo_group() { return new_group({0, 1, 2, 3}, {.backend = "gloo"}); }
  static at::Device gpu_of(int of_rank) {
    return {at::kCUDA, static_cast<at::DeviceIndex>(of_rank % cuda_device_count())};
  }
  /// Rows of all ranks, each on its GPU.
  static ShardedTensor zeros_on_gpus() {
    return sharded_tensor::zeros(chunk_spec(0, {{0, gpu_of(0)}, {1, gpu_of(1)}, {2, gpu_of(2)}, {3, gpu_of(3)}}),
                                 {10, 20});
  }
};

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST033_sharded_tensor_metadata) {
  with_comms([&] {
    const ShardingSpecPtr spec = enumerable_spec(quarters(placements()));
    const ShardedTensor st = sharded_tensor::empty(spec, {10, 10}, {.init_rrefs = true});
    EXPECT_EQ(st.metadata().size, (Sizes{10, 10}));
    EXPECT_EQ(st.dtype(), at::kFloat);
    EXPECT_EQ(st.layout(), at::kStrided);
    EXPECT_FALSE(st.requires_grad());
    EXPECT_TRUE(st.is_contiguous());
    EXPECT_FALSE(st.is_pinned());
    EXPECT_TRUE(sharded_tensor::empty(spec, {10, 10}, {.requires_grad = true, .init_rrefs = true}).requires_grad());
    EXPECT_EQ(sharded_tensor::empty(spec, {10, 10}, {.dtype = at::kDouble, .init_rrefs = true}).dtype(), at::kDouble);
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST033_TR41_pinned_memory) {
  skip_if_lt_x_gpu(1);
  with_comms([&] {
    const ShardedTensor st = sharded_tensor::empty(enumerable_spec(quarters(cpu_placements())), {10, 10},
                                                   {.pin_memory = true, .init_rrefs = true});
    EXPECT_TRUE(st.is_pinned());
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST035_create_sharded_tensor_with_ones) {
  with_comms([&] {
    const ShardedTensor st =
        sharded_tensor::ones(enumerable_spec(quarters(placements())), {10, 10}, {.init_rrefs = true});
    EXPECT_EQ(st.sizes(), at::IntArrayRef({10, 10}));
    ASSERT_EQ(st.local_shards().size(), 1U);
    EXPECT_EQ(st.local_tensor().device(), device());
    EXPECT_TRUE(tensors_equal(st.local_tensor(), at::ones({5, 5})));
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST036_gather_even) {
  with_comms([&] {
    const ShardingSpecPtr spec = enumerable_spec(quarters(placements()));
    expect_ones_gathered(sharded_tensor::ones(spec, {10, 10}, {.init_rrefs = true}), 0, {10, 10});
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST037_gather_uneven) {
  with_comms([&] {
    const ShardedTensor st =
        sharded_tensor::ones(enumerable_spec(quarters(placements({0, 1, 0, 3}))), {10, 10}, {.init_rrefs = true});
    EXPECT_EQ(st.local_shards().size(), (std::vector<std::size_t>{2, 1, 0, 1})[static_cast<std::size_t>(rank())]);
    expect_ones_gathered(st, 0, {10, 10});
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST038_sharded_tensor_to_cuda) {
  skip_if_lt_x_gpu(1);
  with_comms(kNoRpc, [&] {
    set_cuda_device(gpu_of(rank()).index());
    const ProcessGroupPtr group = gloo_group();
    const ShardedTensor first = zeros_on_gpus();
    for (const ShardMetadata& shard : first.metadata().shards_metadata)
      EXPECT_TRUE(shard.placement->device().is_cuda());
    const ShardedTensor on_cpu = first.cpu(at::MemoryFormat::Preserve, group);
    for (const ShardMetadata& shard : on_cpu.metadata().shards_metadata)
      EXPECT_TRUE(shard.placement->device().is_cpu());
    EXPECT_EQ(on_cpu.process_group(), group);
    const ShardedTensor again = first.cuda();
    EXPECT_FALSE(again.is_same(first));
    EXPECT_TRUE(again.local_tensor().is_same(first.local_tensor()));
    const ShardedTensor back = on_cpu.cuda(std::nullopt, false, at::MemoryFormat::Preserve, default_group());
    EXPECT_EQ(back.local_tensor().device(), gpu_of(rank()));
    const ShardedTensor made_on_cpu =
        sharded_tensor::zeros(chunk_spec(0, cpu_placements()), {10, 20}, {.process_group = group});
    const ShardedTensor moved = made_on_cpu.cuda();
    EXPECT_EQ(moved.process_group(), group);
    EXPECT_EQ(moved.local_tensor().device(), gpu_of(rank()));
    EXPECT_EQ(as_chunk(*made_on_cpu.sharding_spec())->placements(), cpu_placements());
    for (const ShardedTensor& st : {again, back, moved}) {
      const ChunkShardingSpec* const spec = as_chunk(*st.sharding_spec());
      ASSERT_NE(spec, nullptr);
      EXPECT_EQ(spec->dim(), 0);
      ASSERT_EQ(spec->placements().size(), 4U);
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(spec->placements()[i].rank(), static_cast<int>(i));
        EXPECT_TRUE(spec->placements()[i].device().is_cuda());
        EXPECT_TRUE(st.metadata().shards_metadata[i].placement->device().is_cuda());
      }
    }
  });
}

// The part of the row without GPU: dtypes, and devices if everything is on the CPU already.
SHARD_RANKS_TEST(ShardedTensorEnumerable, ST039_TR17_sharded_tensor_to_test) {
  with_comms(kNoRpc, [&] {
    const ShardedTensor st = sharded_tensor::zeros(chunk_spec(0, cpu_placements()), {10, 20});
    EXPECT_TRUE(st.to({.device = at::kCPU, .dtype = st.dtype()}).is_same(st));
    const ShardedTensor half = st.to(at::kHalf);
    EXPECT_FALSE(half.is_same(st));
    EXPECT_EQ(half.dtype(), at::kHalf);
    EXPECT_EQ(half.local_tensor().scalar_type(), at::kHalf);
    EXPECT_TRUE(st.to(at::Device(at::kCPU)).is_same(st));
    EXPECT_TRUE(st.to("cpu").is_same(st));
    const ShardedTensor like = st.to(at::zeros({3, 4}, at::kHalf));
    EXPECT_FALSE(like.is_same(st));
    EXPECT_EQ(like.dtype(), at::kHalf);
    EXPECT_EQ(st.to(at::kCPU, at::kHalf).dtype(), at::kHalf);
    EXPECT_EQ(half.to(at::kCPU, at::kFloat).dtype(), at::kFloat);
    const ProcessGroupPtr group = gloo_group();
    const ShardedTensor moved = st.to({.device = at::kCPU, .copy = true, .process_group = group});
    EXPECT_FALSE(moved.is_same(st));
    EXPECT_EQ(moved.local_tensor().device(), at::kCPU);
    EXPECT_EQ(moved.process_group(), group);
    EXPECT_EQ(half.process_group(), st.process_group());
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST039_sharded_tensor_to_cuda_and_back) {
  skip_if_lt_x_gpu(1);
  with_comms(kNoRpc, [&] {
    const int index = gpu_of(rank()).index();
    set_cuda_device(index);
    const ShardedTensor st = zeros_on_gpus(), on_cpu = sharded_tensor::zeros(chunk_spec(0, cpu_placements()), {10, 20});
    const auto type = [](const ShardedTensor& tensor) { return tensor.local_tensor().device().type(); };
    EXPECT_EQ(type(st), at::kCUDA);
    EXPECT_EQ(type(on_cpu.to("cuda")), at::kCUDA);
    EXPECT_TRUE(st.to({.device = at::Device("cuda"), .dtype = st.dtype()}).is_same(st));
    const ShardedTensor half = st.to(at::kHalf);
    EXPECT_FALSE(half.is_same(st));
    EXPECT_EQ(half.dtype(), at::kHalf);
    EXPECT_EQ(type(half), at::kCUDA);
    const ShardedTensor to_cpu = st.to(at::Device("cpu"));
    EXPECT_FALSE(to_cpu.is_same(st));
    EXPECT_EQ(type(to_cpu), at::kCPU);
    EXPECT_EQ(type(to_cpu.to("cuda")), at::kCUDA);
    EXPECT_EQ(type(st.to("cpu").to(index)), at::kCUDA);
    const ShardedTensor like = st.to(at::zeros({3, 4}, at::TensorOptions(at::kHalf).device(at::kCUDA)));
    EXPECT_FALSE(like.is_same(st));
    EXPECT_EQ(like.dtype(), at::kHalf);
    const ShardedTensor both = st.to(at::kCPU, at::kHalf);
    EXPECT_EQ(type(both), at::kCPU);
    EXPECT_EQ(both.dtype(), at::kHalf);
    const ShardedTensor floats = both.to(at::Device("cuda"), at::kFloat);
    EXPECT_EQ(type(floats), at::kCUDA);
    EXPECT_EQ(floats.dtype(), at::kFloat);
    const ProcessGroupPtr group = gloo_group();
    const ShardedTensor grouped = st.to({.device = at::kCPU, .process_group = group});
    EXPECT_FALSE(grouped.is_same(st));
    EXPECT_EQ(type(grouped), at::kCPU);
    EXPECT_EQ(grouped.process_group(), group);
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST039_like_a_tensor_of_another_gpu) {
  skip_if_lt_x_gpu(3);
  with_comms(kNoRpc, [&] {
    const at::Device own = gpu_of(rank());
    set_cuda_device(own.index());
    const ShardedTensor st = zeros_on_gpus();
    const ShardedTensor like = st.to(at::zeros({3, 4}, at::TensorOptions(at::kHalf).device("cuda:2")));
    EXPECT_FALSE(like.is_same(st));
    EXPECT_EQ(like.dtype(), at::kHalf);
    EXPECT_EQ(like.local_tensor().device(), own);
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST040_sharded_tensor_device) {
  with_comms(kNoRpc, [&] {
    const ShardedTensor st = sharded_tensor::zeros(chunk_spec(0, placements()), {10, 20});
    EXPECT_EQ(st.device(), device());
    EXPECT_EQ(st.to(at::Device(at::kCPU)).device(), at::Device(at::kCPU));
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST041_uneven_shards) {
  init_pg();
  const std::vector<ShardMetadata> shards{{{0, 0}, {2, 4}, placement(0)},
                                          {{0, 4}, {4, 2}, placement(1)},
                                          {{2, 0}, {4, 4}, placement(2)},
                                          {{4, 4}, {2, 2}, placement(3)}};
  const ShardedTensor st = sharded_tensor::empty(enumerable_spec(shards), {6, 6});
  EXPECT_EQ(st.sizes(), at::IntArrayRef({6, 6}));
  ASSERT_EQ(st.local_shards().size(), 1U);
  const ShardMetadata& own = shards[static_cast<std::size_t>(rank())];
  EXPECT_EQ(st.local_tensor().device(), device());
  EXPECT_EQ(st.local_tensor().sizes(), at::IntArrayRef(own.shard_sizes));
  EXPECT_EQ(st.local_shards()[0].metadata, own);
  EXPECT_EQ(st.metadata().shards_metadata, shards);
}

// The part of the row that needs no GPU.
SHARD_RANKS_TEST(ShardedTensorEnumerable, UP02_sharded_tensor_to_cpu) {
  with_comms(kNoRpc, [&] {
    const ProcessGroupPtr group = gloo_group();
    const ShardedTensor st = sharded_tensor::zeros(chunk_spec(0, cpu_placements()), {10, 20}, {.process_group = group});
    EXPECT_TRUE(st.cpu().is_same(st));
    SHARD_EXPECT_THROW(st.cpu(at::MemoryFormat::ChannelsLast), c10::Error,
                       "Only `torch.contiguous_format` or `torch.preserve_format` is supported!");
  });
}

/// Chunks of `before` that are on the CPU now, of the same ranks, in `group`.
void expect_on_cpu(const ShardedTensor& moved, const ChunkShardingSpec& before, const ProcessGroupPtr& group) {
  EXPECT_EQ(moved.process_group(), group);
  const ChunkShardingSpec* const spec = as_chunk(*moved.sharding_spec());
  ASSERT_NE(spec, nullptr);
  EXPECT_EQ(spec->dim(), before.dim());
  EXPECT_EQ(spec->placements(), cpu_placements());
  for (const ShardMetadata& shard : moved.metadata().shards_metadata) {
    EXPECT_EQ(shard.placement->device(), at::Device(at::kCPU));
  }
  EXPECT_EQ(moved.local_tensor().device(), at::Device(at::kCPU));
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, UP02_TR17_sharded_tensor_from_cuda_to_cpu) {
  skip_if_lt_x_gpu(1);
  with_comms(kNoRpc, [&] {
    set_cuda_device(rank() % cuda_device_count());
    const ProcessGroupPtr group = gloo_group();
    const ShardedTensor st = sharded_tensor::zeros(chunk_spec(0, cpu_placements()), {10, 20}).cuda();
    expect_on_cpu(st.cpu(at::MemoryFormat::Preserve, group), *as_chunk(*st.sharding_spec()), group);
  });
}

// Ranks 0 and 1 have their rows on the CPU already, 2 and 3 on a GPU.
SHARD_RANKS_TEST(ShardedTensorEnumerable, UP02_sharded_tensor_from_cpu_and_cuda_to_cpu) {
  skip_if_lt_x_gpu(1);
  with_comms(kNoRpc, [&] {
    const std::vector<RemoteDevice> places{{0, at::kCPU}, {1, at::kCPU}, {2, gpu_of(2)}, {3, gpu_of(3)}};
    const ProcessGroupPtr group = gloo_group();
    const ShardedTensor st = sharded_tensor::zeros(chunk_spec(0, places), {10, 20}, {.process_group = group});
    const ShardedTensor moved = st.cpu();
    EXPECT_FALSE(moved.is_same(st));
    expect_on_cpu(moved, *as_chunk(*st.sharding_spec()), group);
  });
}

}  // namespace
}  // namespace shard::test

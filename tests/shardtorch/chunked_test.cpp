// ShardedTensors under chunk specs: rows ST-011, 013 to 019, 023, 026 and 027 of the conformance table.
#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <type_traits>

#include "shardtorch/sharded_tensor/ops.h"
#include "tests/support/distributed/layouts.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

const CreateOptions kRrefs{.init_rrefs = true};

class ShardedTensorChunked : public ShardedTensorTestBase {
 protected:
  /// One local shard of a (10, 20) tensor over four ranks, on this rank's device.
  at::Tensor own_rows(const ShardedTensor& st) const {
    EXPECT_EQ(st.local_shards().size(), 1U);
    const at::Tensor local = st.local_shards().at(0).tensor;
    EXPECT_EQ(local.device(), device());
    EXPECT_EQ(local.sizes(), at::IntArrayRef({rank() == 3 ? 1 : 3, 20}));
    return local;
  }
  void expect_filled_with(const ShardedTensor& st, const at::Scalar& value, at::ScalarType dtype) const {
    const at::Tensor local = own_rows(st);
    EXPECT_TRUE(tensors_equal(local, at::full(local.sizes(), value, dtype)));
  }
};

SHARD_RANKS_TEST(ShardedTensorChunked, ST011_sharded_tensor_metadata) {
  with_comms([&] {
    ShardedTensor st = sharded_tensor::empty(rows(), {10, 20}, kRrefs);
    EXPECT_EQ(st.metadata().size, (Sizes{10, 20}));
    EXPECT_EQ(st.sizes(), at::IntArrayRef({10, 20}));
    EXPECT_EQ(st.dtype(), at::kFloat);
    EXPECT_EQ(st.layout(), at::kStrided);
    EXPECT_FALSE(st.requires_grad());
    EXPECT_TRUE(st.is_contiguous());
    EXPECT_FALSE(st.is_pinned());
    const ShardedTensor with_grad =
        sharded_tensor::empty(rows(), {10, 20}, {.requires_grad = true, .init_rrefs = true});
    EXPECT_TRUE(with_grad.requires_grad());
    const ShardedTensor doubles = sharded_tensor::empty(rows(), {10, 20}, {.dtype = at::kDouble, .init_rrefs = true});
    EXPECT_EQ(doubles.dtype(), at::kDouble);
    SHARD_EXPECT_THROW(st.set_requires_grad(true), c10::Error, "torch function '__set__'");
    EXPECT_FALSE(st.requires_grad());
    // torch's own setters of the wrapper cannot be blocked; afterwards all flags agree.
    for (const bool wanted : {true, false}) {
      st.as_tensor().set_requires_grad(wanted);
      EXPECT_EQ(st.metadata().tensor_properties.requires_grad, wanted);
      EXPECT_EQ(st.local_shards()[0].tensor.requires_grad(), wanted);
      EXPECT_EQ(st.requires_grad(), wanted);
    }
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST011_TR41_pinned_memory) {
  skip_if_lt_x_gpu(1);
  with_comms([&] {
    const ShardingSpecPtr spec = chunk_spec(0, cpu_placements());
    EXPECT_TRUE(sharded_tensor::empty(spec, {10, 20}, {.pin_memory = true, .init_rrefs = true}).is_pinned());
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST013_create_sharded_tensor_with_ones) {
  with_comms(kNoRpc, [&] { expect_filled_with(sharded_tensor::ones(rows(), {10, 20}), 1, at::kFloat); });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST014_gather_even) {
  with_comms(kNoRpc, [&] { expect_ones_gathered(sharded_tensor::ones(rows(), {10, 20}), 1, {10, 20}); });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ranks_that_cut_a_tensor_differently) {
  with_comms(kNoRpc, [&] {
    ShardedTensor st = sharded_tensor::ones(chunk_spec(rank() % 2, placements({0, 1, 2, 3})), {4, 4});
    const std::string text = "does not match with shards_metadata[0]=ShardMetadata(shard_offsets=[0, 0], shard_sizes=[";
    SHARD_EXPECT_THROW(st.gather(1, rank() == 1 ? std::optional(at::zeros({4, 4})) : std::nullopt), c10::ValueError,
                       text);
    SHARD_EXPECT_THROW(st.full_tensor(), c10::ValueError, text);
    SHARD_EXPECT_THROW(st.reshard(chunk_spec(0, placements({3, 2, 1, 0}))), c10::ValueError, text);
    SHARD_EXPECT_THROW(equal(st, st), c10::ValueError, "does not match with first tensor: shards_metadata[0]=");
    default_group()->barrier();
    expect_ones_gathered(sharded_tensor::ones(rows(), {10, 20}), 1, {10, 20});
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST015_gather_uneven) {
  with_comms(kNoRpc, [&] {
    const ShardedTensor st = sharded_tensor::ones(chunk_spec(0, placements({0, 0, 1, 1, 2})), {10, 20});
    EXPECT_EQ(st.local_shards().size(), (std::vector<std::size_t>{2, 2, 1, 0})[static_cast<std::size_t>(rank())]);
    expect_ones_gathered(st, 1, {10, 20});
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST016_create_sharded_tensor_with_zeros) {
  with_comms(kNoRpc, [&] { expect_filled_with(sharded_tensor::zeros(rows(), {10, 20}), 0, at::kFloat); });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST017_create_sharded_tensor_with_rand) {
  with_comms(kNoRpc, [&] {
    const at::TensorOptions plain = at::TensorOptions(at::kDouble).device(device());
    const auto expect_drawn = [&](const auto& draw, const auto& make) {
      at::manual_seed(1234);
      const at::Tensor expected = draw();
      at::manual_seed(1234);
      const ShardedTensor st = make();
      ASSERT_EQ(st.local_shards().size(), 1U);
      EXPECT_EQ(st.local_tensor().device(), device());
      EXPECT_TRUE(at::equal(st.local_tensor(), expected));
    };
    const CreateOptions doubles{.dtype = at::kDouble};
    expect_drawn(
        [&] {
          return at::rand({2, 2}, plain);
        },
        [&] {
          return sharded_tensor::rand(rows(), {8, 2}, doubles);
        });
    expect_drawn(
        [&] {
          return at::randn({2, 2}, plain);
        },
        [&] {
          return sharded_tensor::randn(rows(), {8, 2}, doubles);
        });
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST018_create_sharded_tensor_with_full) {
  with_comms(kNoRpc, [&] {
    expect_filled_with(sharded_tensor::full(rows(), {10, 20}, 1234, {.dtype = at::kInt}), 1234, at::kInt);
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST019_create_sharded_tensor_like) {
  with_comms(kNoRpc, [&] {
    const CreateOptions doubles{.dtype = at::kDouble};
    const at::TensorOptions plain = at::TensorOptions(at::kDouble).device(device());
    const ShardedTensor st = sharded_tensor::rand(rows(), {8, 8}, doubles);
    const at::Tensor wrapper = st.as_tensor();
    const auto local = [](const at::Tensor& tensor) { return ShardedTensor::of(tensor).local_tensor(); };
    EXPECT_TRUE(tensors_equal(local(at::full_like(wrapper, 8.8, at::kDouble)), at::full({2, 8}, 8.8, plain)));
    EXPECT_TRUE(
        tensors_equal(sharded_tensor::full_like(st, 8.8, doubles).local_tensor(), at::full({2, 8}, 8.8, plain)));
    EXPECT_EQ(local(at::empty_like(wrapper, at::kDouble)).sizes(), at::IntArrayRef({2, 8}));
    EXPECT_EQ(sharded_tensor::empty_like(st, doubles).local_tensor().sizes(), at::IntArrayRef({2, 8}));
    const auto expect_like = [&](const auto& plain_op, const auto& dispatched, const auto& sharded_op) {
      at::manual_seed(1234);
      const at::Tensor expected = plain_op();
      at::manual_seed(1234);
      EXPECT_TRUE(at::equal(local(dispatched()), expected));
      at::manual_seed(1234);
      EXPECT_TRUE(at::equal(sharded_op().local_tensor(), expected));
    };
    expect_like(
        [&] {
          return at::zeros({2, 8}, plain);
        },
        [&] { return at::zeros_like(wrapper, at::kDouble); }, [&] { return sharded_tensor::zeros_like(st, doubles); });
    expect_like(
        [&] {
          return at::ones({2, 8}, plain);
        },
        [&] { return at::ones_like(wrapper, at::kDouble); }, [&] { return sharded_tensor::ones_like(st, doubles); });
    expect_like(
        [&] {
          return at::rand({2, 8}, plain);
        },
        [&] { return at::rand_like(wrapper, at::kDouble); }, [&] { return sharded_tensor::rand_like(st, doubles); });
    expect_like(
        [&] {
          return at::randn({2, 8}, plain);
        },
        [&] { return at::randn_like(wrapper, at::kDouble); }, [&] { return sharded_tensor::randn_like(st, doubles); });
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST023_sharding_columns) {
  init_pg();
  for (const std::int64_t dim : {1, -1}) {
    const ShardedTensor st = sharded_tensor::empty(chunk_spec(dim, placements()), {10, 32});
    ASSERT_EQ(st.local_shards().size(), 1U);
    EXPECT_EQ(st.local_tensor().device(), device());
    EXPECT_EQ(st.local_tensor().sizes(), at::IntArrayRef({10, 8}));
    EXPECT_EQ(st.metadata().shards_metadata, side_by_side(placements(), 10, 8));
  }
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST026_insufficient_sharding_dims) {
  init_pg();
  const ShardedTensor st = sharded_tensor::empty(rows(), {2, 20});
  ASSERT_EQ(st.local_shards().size(), 1U);
  EXPECT_EQ(st.local_tensor().device(), device());
  EXPECT_EQ(st.local_tensor().sizes(), at::IntArrayRef({rank() <= 1 ? 1 : 0, 20}));
  std::vector<ShardMetadata> expected;
  for (int i = 0; i < 4; ++i) expected.emplace_back(Sizes{i, 0}, Sizes{i <= 1 ? 1 : 0, 20}, placement(i));
  EXPECT_EQ(st.metadata().shards_metadata, expected);
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST027_sharded_tensor_sizes) {
  with_comms([&] {
    const ShardedTensor st = sharded_tensor::empty(rows(), {10, 20}, kRrefs);
    EXPECT_EQ(st.sizes(), at::IntArrayRef({10, 20}));
    EXPECT_EQ(sharded_tensor::empty(rows(), 10, kRrefs).sizes(), at::IntArrayRef({10}));
    EXPECT_EQ(sharded_tensor::empty(rows(), std::vector<std::int64_t>{10, 20}, kRrefs).sizes(), st.sizes());
    EXPECT_EQ(st.size(0), 10);
    EXPECT_EQ(st.size(1), 20);
    EXPECT_EQ(st.size(-1), 20);
    EXPECT_EQ(st.dim(), 2);
    SHARD_EXPECT_THROW(st.size(-3), c10::IndexError, "Dimension out of range");
    SHARD_EXPECT_THROW(st.size(2), c10::IndexError, "Dimension out of range");
  });
  // A size that is not a list of numbers does not compile.
  static_assert(!std::is_constructible_v<ShardedTensor, ShardingSpecPtr, const char*>);
  static_assert(std::is_constructible_v<ShardedTensor, ShardingSpecPtr, at::IntArrayRef>);
}

}  // namespace
}  // namespace shard::test

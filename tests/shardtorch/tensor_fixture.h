/// \file
/// Common code of the tests of ShardedTensors on thread ranks: whole tensors, and their parts.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardtorch/sharded_tensor/sharded_tensor.h"
#include "tests/support/distributed/layouts.h"
#include "tests/support/distributed/multi_thread_test.h"
#include "tests/support/distributed/sharded_tensor_test.h"
#include "tests/support/distributed/tensors.h"

namespace shard::test {

/// Matches a callable that throws an `E` whose text contains `text`.
template <class E>
auto Refuses(const std::string& text) {
  return ::testing::ThrowsMessage<E>(::testing::HasSubstr(text));
}

inline RemoteDevice on(int rank) { return {rank, at::Device(at::kCPU)}; }

inline ShardingSpecPtr chunks(std::int64_t dim, const std::vector<int>& ranks) {
  return chunk_spec(dim, cpu_placements(ranks));
}

/// The quarters of a (10, 10) tensor, row by row, on these ranks.
inline std::vector<ShardMetadata> quarters(const std::vector<int>& ranks) { return quarters(cpu_placements(ranks)); }

/// 0, 1, 2, ... in that shape.
inline at::Tensor counted(at::IntArrayRef size, at::ScalarType dtype = at::kFloat) {
  return at::arange(c10::multiply_integers(size), at::kDouble).view(size).to(dtype);
}

/// The part of `whole` in a shard; shards without elements may be outside.
inline at::Tensor part_of(const at::Tensor& whole, const ShardMetadata& shard) {
  if (c10::multiply_integers(shard.shard_sizes) == 0) return at::empty(shard.shard_sizes, whole.scalar_type());
  return narrow_tensor(whole, shard).contiguous();
}

/// `whole`, cut. No communication.
inline ShardedTensor cut(const at::Tensor& whole, ShardingSpecPtr spec, ProcessGroupPtr group = nullptr) {
  ShardedTensor sharded(std::move(spec), whole.sizes(),
                        {.dtype = whole.scalar_type(), .process_group = std::move(group)});
  for (const Shard& shard : sharded.local_shards()) shard.tensor.copy_(part_of(whole, shard.metadata));
  return sharded;
}

inline void expect_parts_of(const ShardedTensor& sharded, const at::Tensor& whole) {
  for (const Shard& shard : sharded.local_shards()) {
    EXPECT_TRUE(tensors_equal(shard.tensor, part_of(whole, shard.metadata))) << shard.metadata;
  }
}

/// Four ranks as threads.
class Tensor : public MultiThreadedTestCase {
 protected:
  Shard quarter() const {
    const ShardMetadata own = quarters({0, 1, 2, 3})[static_cast<std::size_t>(rank())];
    return {at::full({5, 5}, rank()), own};
  }
  /// Gathers to `dst` into zeros of `dtype`; the others get an undefined tensor.
  at::Tensor gathered(const ShardedTensor& tensor, int dst, at::ScalarType dtype,
                      const ShardedTensor::GatherOptions& options = {}) const {
    std::optional<at::Tensor> out;
    if (tensor.process_group()->rank() == dst) out = at::zeros(tensor.sizes(), dtype);
    tensor.gather(dst, out, options);
    return out.value_or(at::Tensor());
  }
};

}  // namespace shard::test

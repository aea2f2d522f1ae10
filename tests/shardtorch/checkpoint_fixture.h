/// \file
/// Common code of the tests of checkpoints: tensors of known bytes, sharded over ranks that are threads.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "libshard/core/error.h"
#include "shardtorch/checkpoint/checkpoint.h"
#include "shardtorch/checkpoint/tensor_memory.h"
#include "shardtorch/sharded_tensor/sharded_tensor.h"
#include "tests/support/distributed/multi_thread_test.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace shard::test {

inline void as_ranks(int ranks, const std::function<void(int)>& body) { spawn_threads_and_init_comms(ranks, body); }

inline RemoteDevice on(int rank) { return RemoteDevice(rank, at::kCPU); }

/// Elements of all ranks, from `first` on.
inline std::vector<RemoteDevice> placements(int ranks, int first = 0) {
  std::vector<RemoteDevice> all;
  for (int i = 0; i < ranks; ++i) all.push_back(on((i + first) % ranks));
  return all;
}

/// Blocks of a matrix, rows by columns, assigned to ranks in turn. Their sizes are uneven. The last block comes first.
inline ShardingSpecPtr grid_spec(std::int64_t height, std::int64_t width, int rows, int columns, int ranks) {
  std::vector<ShardMetadata> shards;
  const auto cut = [](std::int64_t n, int parts, int i) { return i * (n / parts); };
  const auto end = [&](std::int64_t n, int parts, int i) { return i + 1 == parts ? n : cut(n, parts, i + 1); };
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      const std::int64_t top = cut(height, rows, r), left = cut(width, columns, c);
      shards.emplace_back(Sizes{top, left}, Sizes{end(height, rows, r) - top, end(width, columns, c) - left},
                          on((r * columns + c) % ranks));
    }
  }
  std::ranges::reverse(shards);
  return enumerable_spec(std::move(shards));
}

/// Bytes that differ from element to element.
inline at::Tensor content(at::IntArrayRef shape, at::ScalarType type, int seed = 0) {
  const std::int64_t elements = c10::multiply_integers(shape);
  const std::int64_t width = static_cast<std::int64_t>(c10::elementSize(type));
  at::Tensor bytes = at::arange(elements * width, at::kLong).mul(7 + 2 * seed).add(seed).remainder(251).to(at::kByte);
  if (type == at::kBool) return bytes.remainder(2).to(at::kBool).reshape(shape);
  if (type == at::kComplexDouble) bytes = bytes.remainder(2);  // No NaNs, which would not equal themselves.
  return bytes.view(type).reshape(shape);
}

/// `whole` sharded by `spec`, with only this rank's part in memory.
inline ShardedTensor cut(const at::Tensor& whole, const ShardingSpecPtr& spec, ProcessGroupPtr group = nullptr) {
  CreateOptions options;
  options.dtype = whole.scalar_type();
  options.process_group = std::move(group);
  const ShardedTensor tensor(spec, whole.sizes(), options);
  for (const Shard& shard : tensor.local_shards()) {
    if (shard.tensor.numel() != 0)
      checkpoint::as_raw(shard.tensor).copy_(checkpoint::as_raw(narrow_tensor(whole, shard.metadata).contiguous()));
  }
  return tensor;
}

/// A tensor of `whole`'s shape with different elements.
inline ShardedTensor blank(const at::Tensor& whole, const ShardingSpecPtr& spec, ProcessGroupPtr group = nullptr) {
  return cut(at::zeros_like(checkpoint::as_raw(whole)).view(whole.scalar_type()), spec, std::move(group));
}

inline void expect_content(const ShardedTensor& tensor, const at::Tensor& whole) {
  for (const Shard& shard : tensor.local_shards()) {
    if (shard.tensor.numel() == 0) continue;
    EXPECT_TRUE(
        checkpoint::as_raw(shard.tensor).equal(checkpoint::as_raw(narrow_tensor(whole, shard.metadata).contiguous())))
        << shard.metadata << " of " << whole.sizes();
  }
}

inline c10::IValue value(const ShardedTensor& tensor) { return tensor.as_tensor(); }

inline StateDict state_of(std::initializer_list<std::pair<std::string, c10::IValue>> items) {
  StateDict state;
  for (const auto& [name, each] : items) state.insert(name, each);
  return state;
}

/// Checks as expect_error, and that the Error names this tensor.
inline void expect_error_of(const std::string& tensor, ErrorCode code, const std::string& words,
                            const std::function<void()>& action) {
  expect_error(code, words, [&] {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.tensor(), tensor) << error.what();
      throw;
    }
  });
}

inline std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

class Checkpoint : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "saved") const { return folder_ / name; }
  static checkpoint::SaveOptions as(const std::string& format) { return {.format = format, .sync = false}; }

  TempFolder folder_;
};

}  // namespace shard::test

/// \file
/// Tests of ShardedTensors over four processes.
///
///     class Chunked : public ShardedTensorTestBase {};
///     SHARD_RANKS_TEST(Chunked, OnesAreOnes) {
///       with_comms({.rpc = false}, [&] {
///         const ShardedTensor st = sharded_tensor::ones(chunk_spec(0, placements()), {10, 20});
///         EXPECT_TRUE(tensors_equal(st.local_tensor(), at::ones({rank() == 3 ? 1 : 3, 20})));
///       });
///     }
///
/// BACKEND selects the backend (gloo if unset). Shards are on the CPU with gloo, on GPU r with nccl, or on the device
/// of SHARD_TEST_DEVICE. placement(r) and device(r) return it.
///
/// Source: torch/testing/_internal/distributed/_shard/sharded_tensor/__init__.py (torch 2.11).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>
#include <vector>

#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/modules.h"
#include "shardtorch/sharded_tensor/sharded_tensor.h"
#include "tests/support/distributed/environment.h"
#include "tests/support/distributed/multi_process_test.h"
#include "tests/support/distributed/tensors.h"

namespace shard::test {

inline constexpr int kTestGpuNum = 4;

struct CommsOptions {
  bool rpc = true;
  std::string backend = test_backend();
};
inline const CommsOptions kNoRpc{.rpc = false};

class ShardedTensorTestBase : public MultiProcessTestCase {
 public:
  int world_size() const override { return kTestGpuNum; }

 protected:
  /// Skips in the parent, before ranks are started, if BACKEND or SHARD_TEST_DEVICE needs more GPUs than there are.
  void set_up() override;

  // --- Devices of shards; `of_rank` is a rank of the world
  // -------------------------------------------------------------

  at::Device device(int of_rank) const;
  at::Device device() const { return device(rank()); }  ///< This rank's.
  /// "rank:2/cpu" or "rank:2/cuda:2".
  RemoteDevice placement(int of_rank) const { return RemoteDevice(of_rank, device(of_rank)); }
  /// A second device for that rank if each has a GPU: the GPU of the rank after the next. Otherwise the same device.
  RemoteDevice other_placement(int of_rank) const {
    return RemoteDevice(of_rank, device((of_rank + 2) % world_size()));
  }
  std::vector<RemoteDevice> placements(const std::vector<int>& of_ranks) const;
  std::vector<RemoteDevice> placements() const;  ///< Placements of all ranks, in order.
  /// "worker2/cpu"
  RemoteDevice worker_placement(int of_rank) const;
  /// Chunks of rows, one per rank.
  ShardingSpecPtr rows() const { return chunk_spec(0, placements()); }
  /// Gathers a tensor of ones of that size to rank `dst`; the others give no output.
  void expect_ones_gathered(const ShardedTensor& st, int dst, at::IntArrayRef size) const;

  // --- Communication -------------------------------------------------------------------------------------------------

  /// The default group over the ranks' file. For nccl the CUDA device becomes the rank's.
  /// \throws c10::Error  "Backend foo not supported!"; Skip (72)  mpi, hccl: not built; errors of make_c10d_world
  void init_pg(const std::string& backend = test_backend());
  struct RpcNames {
    int rank;
    std::string name;
  };
  /// RPC over the same file: worker{rank}, id rank, and rpc_device_maps(); or `names`.
  void init_rpc();
  void init_rpc(const RpcNames& names);
  /// Shards on another rank's device arrive on this rank's device, and those on this one on the other's.
  std::map<std::string, std::unordered_map<at::Device, at::Device>> rpc_device_maps() const;
  /// RPC first, if requested, then the group.
  void init_comms(const CommsOptions& options);
  /// A barrier, then the RPC's end, then the group's.
  void destroy_comms(bool destroy_rpc = true);
  /// Skips with the code of multi-gpu-{world_size} if the backend is nccl and there are too few GPUs; then init_comms,
  /// `body`, destroy_comms. After a failure nothing is destroyed (the others may be elsewhere): the rank's process
  /// ends.
  void with_comms(const CommsOptions& options, const std::function<void()>& body);
  void with_comms(const std::function<void()>& body) { with_comms(CommsOptions{}, body); }

 private:
  c10::intrusive_ptr<c10d::Store> store(const std::string& prefix);
  void skip_without_gpus() const;
  /// Half the test's time, so that ranks that wait in vain can still report the reason.
  std::chrono::milliseconds comms_timeout() const { return timeout() / 2; }

  std::string backend_ = test_backend();
  int round_ = 0;  ///< The number of destroyed communications: later rounds need separate keys.
  c10::intrusive_ptr<c10d::Store> file_store_;
};

/// Local shards, metadata, specs and the number of workers with remote shards. \pre both were made with init_rrefs
::testing::AssertionResult sharded_tensors_equal(const ShardedTensor& a, const ShardedTensor& b);

/// Chunk specs over four ranks, one per dim, whose owners are shuffled: the orders of Python's
/// _chunk_sharding_specs_list_for_test for these dims and seed, not negative. `place` makes a rank's placement.
std::vector<ShardingSpecPtr> chunk_sharding_specs_for_test(const std::vector<std::int64_t>& sharding_dims, int seed,
                                                           const std::function<RemoteDevice(int)>& place);

/// A module with a sharded attribute (rand(spec, 10, 20); empty without a spec) and a (2, 2) parameter.
class MyShardedModel2 : public torch::nn::Module, public ShardedAttributes {
 public:
  explicit MyShardedModel2(ShardingSpecPtr spec = nullptr, ProcessGroupPtr group = nullptr, bool init_rrefs = true);
  ShardedTensor sharded_tensor2;
  at::Tensor random_tensor2;
};

/// The same, with a MyShardedModel2 as its child "submodule".
class MyShardedModel1 : public torch::nn::Module, public ShardedAttributes {
 public:
  explicit MyShardedModel1(ShardingSpecPtr spec = nullptr, ProcessGroupPtr group = nullptr, bool init_rrefs = true);
  ShardedTensor sharded_tensor1;
  at::Tensor random_tensor1;
  std::shared_ptr<MyShardedModel2> submodule;
};

/// Runs `statement`, which must throw an `Exception` whose what() has no backtrace and contains `words`.
#define SHARD_EXPECT_THROW(statement, Exception, words) \
  EXPECT_TRUE(::shard::test::throws<Exception>([&] { statement; }, words))

/// `Exception` exactly, not a type derived from it: plain c10::Error is Python's RuntimeError. See SHARD_EXPECT_THROW.
template <class Exception>
::testing::AssertionResult throws(const std::function<void()>& action, const std::string& words) {
  try {
    action();
  } catch (const Exception& error) {
    if (typeid(error) != typeid(Exception)) {
      return ::testing::AssertionFailure() << "thrown is a " << typeid(error).name() << ": " << error.what();
    }
    if constexpr (requires { error.what_without_backtrace(); }) {
      if (std::string_view(error.what()) != error.what_without_backtrace()) {
        return ::testing::AssertionFailure() << "what() has a backtrace: " << error.what();
      }
    }
    if (std::string_view(error.what()).find(words) != std::string_view::npos) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "the text is '" << error.what() << "', expected '" << words << "' in it";
  } catch (const std::exception& error) {
    return ::testing::AssertionFailure() << "thrown is another exception: " << error.what();
  }
  return ::testing::AssertionFailure() << "nothing was thrown, expected '" << words << "'";
}

}  // namespace shard::test

/// \file
/// The environment of tests of ranks: variables, time limits, output, folders, stores, GPUs.
///
/// Variables that are read: WORLD_SIZE, BACKEND (gloo by default, nccl), DISTRIBUTED_TESTS_DEFAULT_TIMEOUT (seconds),
/// TORCH_DISTRIBUTED_DEBUG, TORCH_NCCL_BLOCKING_WAIT, TORCH_NCCL_ASYNC_ERROR_HANDLING, SANDCASTLE, and
/// SHARD_TEST_DEVICE (the device of shards: "cpu", "cuda:0" for all ranks on one GPU, "cuda" for a GPU each; by default
/// the one of BACKEND). Written: TORCH_SHOW_CPP_STACKTRACES, TEMP_DIR, INIT_METHOD, MASTER_ADDR, MASTER_PORT, and those
/// of the guards.
///
/// Source: torch/testing/_internal/common_distributed.py (torch 2.11).
#pragma once

#include <ATen/core/ivalue.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "tests/support/temp_folder.h"

namespace gloo::transport {
class Device;
}

namespace shard::test {

// --- Variables ------------------------------------------------------------------------------------------------------

std::optional<std::string> variable(const std::string& name);
/// `fallback` if it is not set. \throws std::invalid_argument  it is not a number
int number_variable(const std::string& name, int fallback);
/// BACKEND, or "gloo".
std::string test_backend();

/// Sets a variable (nothing: unsets it) during its lifetime, then restores the old state, set or unset. Threads: none
/// may read the environment during this time.
class EnvironmentGuard {
 public:
  EnvironmentGuard(std::string name, const std::optional<std::string>& value);
  ~EnvironmentGuard();
  EnvironmentGuard(const EnvironmentGuard&) = delete;
  EnvironmentGuard& operator=(const EnvironmentGuard&) = delete;

 private:
  std::string name_;
  std::optional<std::string> before_;
};

/// NCCL groups that are created during its lifetime wait in the calling thread.
class NcclBlockingWait {
  EnvironmentGuard async_{"TORCH_NCCL_ASYNC_ERROR_HANDLING", std::nullopt};
  EnvironmentGuard blocking_{"TORCH_NCCL_BLOCKING_WAIT", "1"};
};

/// Runs `body` once per level ("OFF", "INFO", "DETAIL") under TORCH_DISTRIBUTED_DEBUG, each followed by a barrier of
/// the default group if there is one.
void with_dist_debug_levels(const std::vector<std::string>& levels, const std::function<void()>& body);

// --- Time -----------------------------------------------------------------------------------------------------------

/// 500 s under ThreadSanitizer, otherwise DISTRIBUTED_TESTS_DEFAULT_TIMEOUT, or 300 s if that is not set.
std::chrono::seconds default_timeout();
/// The limit of a test by the part of its name after the last dot: its override, or the default.
std::chrono::seconds get_timeout(std::string_view test_id);

// --- Output and folders ---------------------------------------------------------------------------------------------

/// The output of `body` on stdout and stderr, from C and C++.
struct Output {
  std::string out, err;
};
Output captured_output(const std::function<void()>& body);

/// A folder in TEMP_DIR with barrier/, test_dir/ and init_dir/, and the rendezvous in INIT_METHOD: `init_method`, or
/// else file://<folder>/init_dir/shared_init_file. The destructor removes all of this.
class TempDirectories {
 public:
  explicit TempDirectories(const std::optional<std::string>& init_method = std::nullopt);
  const std::string& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
  EnvironmentGuard temp_dir_, init_method_;
};

// --- Rendezvous -----------------------------------------------------------------------------------------------------

/// A TCP store; the master listens on a port that the system chooses if `port` is 0.
c10::intrusive_ptr<c10d::Store> create_tcp_store(const std::string& address = "localhost", int world_size = 1,
                                                 bool is_master = true, int port = 0,
                                                 std::chrono::milliseconds timeout = std::chrono::minutes(5),
                                                 bool wait_for_workers = true, bool use_libuv = true);
/// Gloo's device on an interface ("lo"), or on 127.0.0.1.
std::shared_ptr<::gloo::transport::Device> create_device(const std::string& interface = "");

/// The default group of one process for a scope, as a rank of a world whose ranks connect at MASTER_ADDR:MASTER_PORT.
class ProcessGroupScope {
 public:
  struct Options {
    std::string backend = test_backend();
    std::string port = "6789";
    bool init_pg = true;
  };
  /// Sets the CUDA device to `rank` for nccl. \throws errors of init_process_group
  ProcessGroupScope(int rank, int world_size, const Options& options);
  ProcessGroupScope(int rank, int world_size) : ProcessGroupScope(rank, world_size, Options{}) {}
  ~ProcessGroupScope();
  ProcessGroupScope(const ProcessGroupScope&) = delete;
  ProcessGroupScope& operator=(const ProcessGroupScope&) = delete;

 private:
  EnvironmentGuard address_, port_;
  bool has_group_ = false;
};

/// GPUs of each rank: rank i has [i]; none for all ranks if there are fewer GPUs than ranks.
std::map<int, std::vector<int>> init_multigpu_helper(int world_size, int gpus);

/// Elastic Fabric Adapter: whether `fi_info -p efa -t FI_EP_RDM` succeeds. Checked once.
bool has_efa();
/// TensorPipe transports to use: shm and uv with EFA, otherwise any (empty).
std::vector<std::string> tp_transports();

// --- Subtests -------------------------------------------------------------------------------------------------------

/// A name and its values, of any types.
using SubtestConfig = std::vector<std::pair<std::string, std::vector<c10::IValue>>>;
using SubtestValues = std::map<std::string, c10::IValue>;
void run_each_subtest(const SubtestConfig& config, const std::function<void(const SubtestValues&)>& body);
/// Runs `body(values, arguments...)` for every combination, the last name fastest; failures name it ("dim=0,
/// dtype=float"). A barrier of the default group follows each, so that ranks do not run apart.
template <class Body, class... Arguments>
void run_subtests(const SubtestConfig& config, const Body& body, const Arguments&... arguments) {
  run_each_subtest(config, [&](const SubtestValues& values) { body(values, arguments...); });
}

}  // namespace shard::test

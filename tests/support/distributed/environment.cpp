#include "tests/support/distributed/environment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <torch/csrc/distributed/c10d/debug.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "shardtorch/sharded_tensor/process_group.h"
#include "tests/support/distributed/skips.h"

namespace shard::test {
namespace {

void set_variable(const std::string& name, const std::optional<std::string>& value) {
  if (value) {
    ::setenv(name.c_str(), value->c_str(), 1);
  } else {
    ::unsetenv(name.c_str());
  }
}

/// Sends a descriptor's output into memory while it lives.
class Redirect {
 public:
  explicit Redirect(int descriptor)
      : descriptor_(descriptor), before_(::dup(descriptor)), memory_(::memfd_create("captured", MFD_CLOEXEC)) {
    ::dup2(memory_, descriptor_);
  }
  ~Redirect() {
    ::dup2(before_, descriptor_);
    ::close(before_);
    ::close(memory_);
  }
  Redirect(const Redirect&) = delete;
  Redirect& operator=(const Redirect&) = delete;

  std::string text() const {
    std::string result(static_cast<std::size_t>(::lseek(memory_, 0, SEEK_END)), '\0');
    const ssize_t bytes = ::pread(memory_, result.data(), result.size(), 0);
    result.resize(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
    return result;
  }

 private:
  int descriptor_, before_, memory_;
};

void flush_output() {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
}

bool run_quietly(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int failed = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  return failed == 0 && ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void barrier_if_grouped() {
  if (has_default_group() && default_group()->is_member()) default_group()->barrier();
}

}  // namespace

std::optional<std::string> variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

int number_variable(const std::string& name, int fallback) {
  const std::optional<std::string> value = variable(name);
  return value ? std::stoi(*value) : fallback;
}

std::string test_backend() { return variable("BACKEND").value_or("gloo"); }

EnvironmentGuard::EnvironmentGuard(std::string name, const std::optional<std::string>& value)
    : name_(std::move(name)), before_(variable(name_)) {
  set_variable(name_, value);
}

EnvironmentGuard::~EnvironmentGuard() { set_variable(name_, before_); }

void with_dist_debug_levels(const std::vector<std::string>& levels, const std::function<void()>& body) {
  for (const std::string& level : levels) {
    const EnvironmentGuard guard("TORCH_DISTRIBUTED_DEBUG", level);
    c10d::setDebugLevelFromEnvironment();
    body();
    barrier_if_grouped();
  }
  c10d::setDebugLevelFromEnvironment();
}

std::chrono::seconds default_timeout() {
#ifdef __SANITIZE_THREAD__
  return std::chrono::seconds(500);
#else
  return std::chrono::seconds(number_variable("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", 300));
#endif
}

std::chrono::seconds get_timeout(std::string_view test_id) {
  static const std::map<std::string_view, std::chrono::seconds> kOverrides = {
      {"test_ddp_uneven_inputs", std::chrono::seconds(400)},
#ifdef USE_ROCM
      {"test_join_kwargs", std::chrono::seconds(200)},
#endif
  };
  const auto found = kOverrides.find(test_id.substr(test_id.rfind('.') + 1));
  return found == kOverrides.end() ? default_timeout() : found->second;
}

Output captured_output(const std::function<void()>& body) {
  flush_output();
  const Redirect out(STDOUT_FILENO), err(STDERR_FILENO);
  body();
  flush_output();
  return {out.text(), err.text()};
}

TempDirectories::TempDirectories(const std::optional<std::string>& init_method)
    : temp_dir_("TEMP_DIR", folder_.path()),
      init_method_("INIT_METHOD", init_method.value_or("file://" + folder_.path() + "/init_dir/shared_init_file")) {
  for (const char* const name : {"barrier", "test_dir", "init_dir"}) std::filesystem::create_directory(folder_ / name);
}

c10::intrusive_ptr<c10d::Store> create_tcp_store(const std::string& address, int world_size, bool is_master, int port,
                                                 std::chrono::milliseconds timeout, bool wait_for_workers,
                                                 bool use_libuv) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = is_master;
  options.numWorkers = static_cast<std::size_t>(world_size);
  options.waitWorkers = wait_for_workers;
  options.timeout = timeout;
  options.useLibUV = use_libuv;
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

std::shared_ptr<::gloo::transport::Device> create_device(const std::string& interface) {
  return interface.empty() ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                           : c10d::ProcessGroupGloo::createDeviceForInterface(interface);
}

ProcessGroupScope::ProcessGroupScope(int rank, int world_size, const Options& options)
    : address_("MASTER_ADDR", "localhost"), port_("MASTER_PORT", options.port) {
  if (!options.init_pg) return;
  if (options.backend == "nccl") set_cuda_device(rank);
  c10::intrusive_ptr<c10d::Store> store;
  if (world_size == 1) {  // A single rank needs no port.
    store = c10::make_intrusive<c10d::HashStore>();
  } else {
    store = create_tcp_store("localhost", world_size, rank == 0, std::stoi(options.port));
  }
  init_process_group(make_c10d_world(options.backend, c10::make_intrusive<c10d::PrefixStore>("default_pg", store), rank,
                                     world_size, default_timeout()));
  has_group_ = true;
}

ProcessGroupScope::~ProcessGroupScope() {
  if (has_group_) destroy_process_group();
}

std::map<int, std::vector<int>> init_multigpu_helper(int world_size, int gpus) {
  const int per_rank = world_size > gpus ? gpus / world_size : 1;
  std::map<int, std::vector<int>> result;
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<int>& own = result[rank];
    for (int gpu = rank * per_rank; gpu < std::min((rank + 1) * per_rank, gpus); ++gpu) own.push_back(gpu);
  }
  return result;
}

bool has_efa() {
  static const bool result = run_quietly({"fi_info", "-p", "efa", "-t", "FI_EP_RDM"});
  return result;
}

std::vector<std::string> tp_transports() {
  return has_efa() ? std::vector<std::string>{"shm", "uv"} : std::vector<std::string>{};
}

void run_each_subtest(const SubtestConfig& config, const std::function<void(const SubtestValues&)>& body) {
  std::size_t combinations = 1;
  for (const auto& [name, values] : config) combinations *= values.size();
  for (std::size_t index = 0; index < combinations; ++index) {
    SubtestValues chosen;
    std::size_t rest = index, block = combinations;
    std::string trace;
    for (const auto& [name, values] : config) {
      block /= values.size();
      const c10::IValue& value = values[rest / block];
      rest %= block;
      chosen[name] = value;
      trace += c10::str(trace.empty() ? "" : ", ", name, '=', value);
    }
    {
      SCOPED_TRACE(trace);
      body(chosen);
    }
    barrier_if_grouped();
  }
}

}  // namespace shard::test

#include "tests/support/distributed/multi_process_test.h"

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/process_group.h"
#include "tests/support/distributed/environment.h"
#include "tests/support/distributed/rank_processes.h"

namespace shard::test {
namespace {

/// The group of SingleProcessTestCase; GoogleTest's class-wide set-up has no object.
std::unique_ptr<ProcessGroupScope>& single_process_scope() {
  static std::unique_ptr<ProcessGroupScope> scope;
  return scope;
}

}  // namespace

MultiProcessTestCase::MultiProcessTestCase()
    : rank_(rank_context() ? rank_context()->rank : kMainProcessRank),
      file_name_(rank_context() ? rank_context()->file_name : "") {}

MultiProcessTestCase::~MultiProcessTestCase() = default;

std::string MultiProcessTestCase::current_test_name() {
  const ::testing::TestInfo* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  return test == nullptr ? "" : test->name();
}

void MultiProcessTestCase::set_up() { spawn_processes(); }
void MultiProcessTestCase::tear_down() { processes_.reset(); }

void MultiProcessTestCase::spawn_processes() { processes_ = std::make_unique<RankProcesses>(world_size(), file_name_); }

std::chrono::milliseconds MultiProcessTestCase::timeout() const { return get_timeout(current_test_name()); }

void MultiProcessTestCase::SetUp() {
  if (rank_ != kMainProcessRank) return;
  file_name_ = folder_.emplace() / "rendezvous";
  SHARD_SKIP_HERE(set_up());
}

void MultiProcessTestCase::TearDown() {
  if (rank_ == kMainProcessRank) tear_down();
}

void MultiProcessTestCase::TestBody() {
  if (rank_ != kMainProcessRank) run_rank_and_exit(*rank_context(), [this] { run_rank(); });
  join_processes();
}

void MultiProcessTestCase::join_processes() {
  Verdict verdict;
  if (processes_ == nullptr) {
    verdict = check_return_codes({}, {});
  } else {
    processes_->join(timeout(), check_return_codes_);
    const auto check = check_return_codes_ ? check_return_codes : check_no_test_errors;
    verdict = check(processes_->results(), processes_->elapsed());
  }
  if (verdict.kind == Verdict::Kind::kFail) ADD_FAILURE() << verdict.text;
  if (verdict.kind == Verdict::Kind::kSkip) GTEST_SKIP() << verdict.text;
}

void MultiProcessPerGpuTestCase::set_up() {
  skip_if_no_gpu();
  MultiProcessTestCase::set_up();
}

int ContinuousTest::rank() { return number_variable("RANK", kMainProcessRank); }
int ContinuousTest::world_size() { return number_variable("WORLD_SIZE", 2); }

std::string ContinuousTest::backend_str() {
  SHARD_CHECK_NOT_IMPLEMENTED(false, "Please implement backend_str in your test class");
}

int ContinuousTest::run_rank(int rank, int world_size, const std::optional<std::string>& rendezvous_file) {
  const EnvironmentGuard own_rank("RANK", std::to_string(rank)), size("WORLD_SIZE", std::to_string(world_size)),
      file("RENDEZVOUS_FILE", rendezvous_file);
  return RUN_ALL_TESTS();
}

void ContinuousTest::set_up_suite(const std::string& backend, const InitOptions& options) {
  SHARD_CHECK(0 <= rank() && rank() < world_size(),
              "Rank must be set and in the range of 0 to world_size. World size: ", world_size(), " Rank: ", rank());
  c10::intrusive_ptr<c10d::Store> store;
  if (const auto file = variable("RENDEZVOUS_FILE")) {
    store = c10::make_intrusive<c10d::FileStore>(*file, -1);
  } else {
    store = create_tcp_store(variable("MASTER_ADDR").value_or("localhost"), world_size(), rank() == 0,
                             number_variable("MASTER_PORT", 29500));
  }
  if (backend == "nccl") set_cuda_device(rank());
  init_process_group(make_c10d_world(backend, c10::make_intrusive<c10d::PrefixStore>("default_pg", store), rank(),
                                     world_size(), options.timeout));
  std::cout << "Testing backend=" << backend << "\nRank " << rank() << " setup complete\n";
}

void ContinuousTest::TearDownTestSuite() {
  if (!has_default_group()) return;
  destroy_process_group();
  if (const auto file = variable("RENDEZVOUS_FILE")) {
    std::error_code ignored;
    std::filesystem::remove(*file, ignored);
  }
  std::cout << "Rank " << rank() << " teardown complete\n";
}

void ContinuousTest::SetUp() {
  if (!variable("RANK")) GTEST_SKIP() << "started without RANK: every rank is started from outside";
}

void SingleProcessTestCase::SetUpTestSuite() {
  const std::string backend = variable("BACKEND").value_or(cuda_device_count() > 0 ? "nccl" : "gloo");
  single_process_scope() =
      std::make_unique<ProcessGroupScope>(0, 1, ProcessGroupScope::Options{.backend = backend, .port = "12355"});
}

at::Device SingleProcessTestCase::device() {
  return default_group()->backend() == "nccl" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

std::vector<int> SingleProcessTestCase::device_ids() {
  return device().is_cuda() ? std::vector<int>{} : std::vector<int>{0};
}

void SingleProcessTestCase::TearDownTestSuite() { single_process_scope().reset(); }

}  // namespace shard::test

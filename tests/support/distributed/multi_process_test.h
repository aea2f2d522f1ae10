/// \file
/// Tests whose body runs in several processes at once, one per rank.
///
///     class Sums : public MultiProcessTestCase {};
///     SHARD_RANKS_TEST(Sums, AllRanksSeeTheSum) { EXPECT_EQ(sum(rank()), 6); }
///
/// The test binary starts itself once per rank (fork and exec) with the test's own filter; rank, rendezvous file and
/// one end of a socket are in the environment. A child runs the body only, never set_up or tear_down, and ends with an
/// exit code: 0; 10 after a failed assertion or an exception, whose texts reach the parent; a skip's code (skips.h).
/// The parent runs set_up, waits, reports and runs tear_down.
///
/// When a rank ends with 10 or by a signal, or when the time limit (get_timeout) is over, the other ranks are ended;
/// stuck ranks first print the stacks of all their threads. The test passes if all ranks return 0. It is skipped only
/// if all ranks give the same reason.
///
/// Source: MultiProcessTestCase in torch/testing/_internal/common_distributed.py (torch 2.11).
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardtorch/sharded_tensor/process_group.h"
#include "tests/support/distributed/environment.h"
#include "tests/support/distributed/skips.h"
#include "tests/support/temp_folder.h"

namespace shard::test {

inline constexpr int kDefaultWorldSize = 4;
inline constexpr int kMainProcessRank = -1;
inline constexpr int kTestErrorExitCode = 10;

class RankProcesses;  // rank_processes.h

class MultiProcessTestCase : public ::testing::Test {
 public:
  MultiProcessTestCase();
  ~MultiProcessTestCase() override;

  /// The rank of a child's process; kMainProcessRank in the parent.
  int rank() const { return rank_; }
  bool is_master() const { return rank() == 0; }
  virtual int world_size() const { return kDefaultWorldSize; }
  /// The path of the rendezvous file, which does not exist yet. It is removed with the test.
  const std::string& file_name() const { return file_name_; }
  static std::string current_test_name();

 protected:
  /// Run in the parent, before and after the test; both may skip. The versions in this class start the ranks and end
  /// the remaining ones.
  virtual void set_up();
  virtual void tear_down();
  /// Runs in every rank.
  virtual void run_rank() = 0;

  /// \pre in the parent, once
  void spawn_processes();
  /// For tests whose ranks end themselves: exit codes other than 10 are not failures. Call it in set_up.
  void skip_return_code_checks() { check_return_codes_ = false; }
  /// The time limit of this test: get_timeout of its name, unless overridden.
  virtual std::chrono::milliseconds timeout() const;

 private:
  void SetUp() final;
  void TearDown() final;
  void TestBody() final;
  void join_processes();

  int rank_;
  std::string file_name_;
  bool check_return_codes_ = true;
  std::optional<TempFolder> folder_;
  std::unique_ptr<RankProcesses> processes_;
};

/// One rank per GPU; skips if there is none.
class MultiProcessPerGpuTestCase : public MultiProcessTestCase {
 public:
  int world_size() const override { return cuda_device_count(); }

 protected:
  void set_up() override;
};

/// One group for all tests of a class. Ranks are started from outside, each with RANK, WORLD_SIZE and, for a rendezvous
/// file, RENDEZVOUS_FILE set (or by run_rank), and all run the same tests in the same order. Without RANK the tests
/// skip. Derive the class from MultiProcContinuousTest<Self>.
class ContinuousTest : public ::testing::Test {
 public:
  static int rank();
  static int world_size();
  /// Sets the variables above and runs all tests of this program. \returns the exit code for main.
  static int run_rank(int rank, int world_size, const std::optional<std::string>& rendezvous_file = std::nullopt);

 protected:
  /// \throws c10::NotImplementedError  always: "Please implement backend_str in your test class".
  static std::string backend_str();
  static InitOptions opts() { return {default_timeout()}; }
  static ProcessGroupPtr pg() { return default_group(); }
  /// \throws c10::Error  "Rank must be set and in the range of 0 to world_size. World size: 2 Rank: 2".
  static void set_up_suite(const std::string& backend, const InitOptions& options);
  static void TearDownTestSuite();
  void SetUp() override;
};

/// `Self` is the test class; it has a static backend_str(), and may have a static opts().
template <class Self>
class MultiProcContinuousTest : public ContinuousTest {
 protected:
  static void SetUpTestSuite() {
    if (rank() != kMainProcessRank) set_up_suite(Self::backend_str(), Self::opts());
  }
};

/// The default group of one rank for all tests of a class, with rendezvous at localhost:12355: over BACKEND, or NCCL
/// with a GPU, or Gloo.
class SingleProcessTestCase : public ::testing::Test {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();
  static constexpr int rank() { return 0; }
  static at::Device device();            ///< "cuda:0" over NCCL, otherwise the CPU.
  static std::vector<int> device_ids();  ///< None over NCCL, otherwise [0], as in the original.
};

}  // namespace shard::test

/// A test whose body runs in every rank of `fixture`, a MultiProcessTestCase (or a MultiThreadedTestCase).
#define SHARD_RANKS_TEST(fixture, name)                                                                             \
  class fixture##_##name final : public fixture {                                                                   \
    void run_rank() override;                                                                                       \
  };                                                                                                                \
  [[maybe_unused]] static const ::testing::TestInfo* const fixture##_##name##_registered = ::testing::RegisterTest( \
      #fixture, #name, nullptr, nullptr, __FILE__, __LINE__, []() -> fixture* { return new fixture##_##name; });    \
  void fixture##_##name::run_rank()

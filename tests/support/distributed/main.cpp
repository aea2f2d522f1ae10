// The main of test binaries whose tests may run in several ranks.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

#include "tests/support/distributed/environment.h"
#include "tests/support/distributed/multi_process_test.h"
#include "tests/support/distributed/rank_processes.h"
#include "tests/support/distributed/rank_starter.h"

int main(int argc, char** argv) {
  using namespace shard::test;
  if (variable("TEST_WITH_DEV_DBG_ASAN") == "1") {
    std::cerr << "Skip dev-asan as torch + multiprocessing spawn have known issues\n";
    return 0;
  }
  start_rank_starter(argc, argv);
  ::testing::InitGoogleMock(&argc, argv);
  at::manual_seed(1234);  // Every rank draws the same.
  // For the test of run_rank itself.
  if (const auto rank = variable("SHARD_RUN_RANK")) {
    return ContinuousTest::run_rank(std::stoi(*rank), 2, variable("SHARD_RUN_FILE"));
  }
  if (!rank_context()) return RUN_ALL_TESTS();
  become_rank(*rank_context());
  const int result = RUN_ALL_TESTS();  // Returns only if the rank's test has no body to run.
  std::cerr << "a rank found no test to run\n";
  return result == 0 ? kTestErrorExitCode : result;
}

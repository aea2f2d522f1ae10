/// \file
/// Tests that must fail or hang are disabled. Other tests start them in a separate process of this binary, and check
/// the result.
#pragma once

#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

namespace shard::test {

/// Longer than any of these tests may take. A test that waits longer hangs.
inline void wait_in_vain() { std::this_thread::sleep_for(std::chrono::minutes(10)); }

/// Longer than a run without waiting, even on a busy machine; shorter than the time limit.
inline constexpr std::chrono::seconds kSoon{35};

struct Outcome {
  int exit_code;
  std::string output;  ///< Stdout and stderr.
  std::chrono::duration<double> time;
};

inline std::string this_binary() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

/// A command of the shell.
inline Outcome run(const std::string& command) {
  const auto begin = std::chrono::steady_clock::now();
  FILE* const pipe = ::popen(("exec 2>&1; " + command).c_str(), "r");
  Outcome result{-1, {}, {}};
  std::array<char, 4096> part;
  for (std::size_t bytes = 0; (bytes = std::fread(part.data(), 1, part.size(), pipe)) > 0;) {
    result.output.append(part.data(), bytes);
  }
  const int status = ::pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.time = std::chrono::steady_clock::now() - begin;
  return result;
}

/// `test` with its name as in --gtest_filter; the ranks it starts have `timeout_s`.
inline Outcome run_disabled(const std::string& test, int timeout_s = 40) {
  return run("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=" + std::to_string(timeout_s) + " " + this_binary() +
             " --gtest_also_run_disabled_tests --gtest_filter=" + test);
}

}  // namespace shard::test

// Ended processes, their messages and their stacks, as tests/support/distributed reports them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/support/distributed/environment.h"
#include "tests/support/distributed/rank_messages.h"
#include "tests/support/distributed/rank_processes.h"
#include "tests/support/distributed/stack_traces.h"

namespace shard::test {
namespace {

using namespace std::chrono_literals;

// --- rank_processes.h -----------------------------------------------------------------------------------------------

using Kind = Verdict::Kind;

RankResult ended(int rank, int code) { return {.rank = rank, .pid = 1000 + rank, .exit_code = code}; }
RankResult failed(int rank, const std::string& text, std::int64_t when_ns) {
  return {.rank = rank, .pid = 1000 + rank, .exit_code = 10, .failures = {text}, .first_failure_ns = when_ns};
}

Verdict verdict_of(const std::vector<RankResult>& ranks) { return check_return_codes(ranks, 3s); }

TEST(ReturnCodes, HN051_all_zero_pass) { EXPECT_EQ(verdict_of({ended(0, 0), ended(1, 0)}).kind, Kind::kPass); }

TEST(ReturnCodes, HN051_without_ranks_a_note_says_so) {
  const Output output = captured_output([] { EXPECT_EQ(verdict_of({}).kind, Kind::kPass); });
  EXPECT_EQ(output.err, "Note: no subprocesses were spawned, test was likely skipped.\n");
}

TEST(ReturnCodes, HN051_TR36_ten_wins_and_the_first_failure_comes_first) {
  const Verdict verdict = verdict_of({failed(0, "late", 20), ended(1, 86), failed(2, "early", 10)});
  EXPECT_EQ(verdict.kind, Kind::kFail);
  EXPECT_EQ(verdict.text,
            "Process 2 exited with error code 10 and exception:\nearly\n"
            "Process 0 exited with error code 10 and exception:\nlate\n");
}

TEST(ReturnCodes, HN051_a_signal_comes_before_what_others_saw_of_it) {
  const Verdict verdict = verdict_of({failed(0, "connection closed", 5), ended(1, -SIGKILL)});
  EXPECT_EQ(verdict.text,
            "Process 1 was ended by signal 9 (Killed)\n"
            "Process 0 exited with error code 10 and exception:\nconnection closed\n");
}

TEST(ReturnCodes, HN051_a_rank_that_the_parent_ended_failed) {
  const Verdict verdict = verdict_of({ended(0, 0), RankResult{.rank = 1, .pid = 1001}});
  EXPECT_EQ(verdict.kind, Kind::kFail);
  EXPECT_EQ(verdict.text, "Process 1 terminated or timed out after 3 seconds\n");
}

TEST(ReturnCodes, HN051_TR36_codes_must_match_that_of_rank_0) {
  const Verdict verdict = verdict_of({ended(0, 0), ended(1, 81)});
  EXPECT_EQ(verdict.kind, Kind::kFail);
  EXPECT_EQ(verdict.text, "Expect process 1 exit code to match Process 0 exit code of 0, but got 81");
}

TEST(ReturnCodes, HN051_TR36_a_skip_of_all_skips) {
  const Verdict verdict = verdict_of({ended(0, 81), ended(1, 81)});
  EXPECT_EQ(verdict.kind, Kind::kSkip);
  EXPECT_EQ(verdict.text, "Need at least 4 CUDA devices");
}

TEST(ReturnCodes, HN051_another_code_of_all_fails) {
  const Verdict verdict = verdict_of({ended(0, 3), ended(1, 3)});
  EXPECT_EQ(verdict.kind, Kind::kFail);
  EXPECT_EQ(verdict.text, "Expected zero exit code but got 3 for pid: 1000");
}

TEST(ReturnCodes, HN050_without_checks_only_10_and_no_code_fail) {
  EXPECT_EQ(check_no_test_errors(std::vector{ended(0, -9), ended(1, 7)}, 3s).kind, Kind::kPass);
  EXPECT_EQ(check_no_test_errors(std::vector{ended(0, 0), ended(1, 10)}, 3s).kind, Kind::kFail);
  const Verdict verdict = check_no_test_errors(std::vector{ended(0, 0), RankResult{.rank = 1}}, 3s);
  EXPECT_EQ(verdict.text, "Process 1 timed out after 3 seconds\n");
}

/// A thread that handles no stack signal until `ready` is set.
std::jthread deaf_until(const std::function<void()>& ready, std::atomic<pid_t>& id) {
  std::jthread thread([&id, ready] {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    id = ::gettid();
    ready();
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    std::this_thread::sleep_for(1s);
  });
  while (id == 0) std::this_thread::yield();
  return thread;
}

bool has_pending_signal(pid_t thread) {
  std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigPnd:")) return line.find_first_of("123456789abcdef", 7) != std::string::npos;
  }
  return false;
}

TEST(StackTraces, HN045_an_answer_that_comes_late_is_not_taken_for_the_next_threads) {
  std::atomic<pid_t> first = 0, second = 0;
  const std::jthread late = deaf_until(
      [&] {
        while (second == 0 || !has_pending_signal(second)) std::this_thread::sleep_for(1ms);
      },
      first);
  std::atomic<bool> was_asked = false;
  const std::jthread never = deaf_until(
      [&] {
        while (!was_asked) std::this_thread::sleep_for(1ms);
      },
      second);
  const std::string stacks = stacks_of_other_threads();
  was_asked = true;
  for (const pid_t thread : {first.load(), second.load()}) {
    const std::size_t begin = stacks.find("Thread " + std::to_string(thread) + " ");
    ASSERT_NE(begin, std::string::npos);
    const std::size_t line = stacks.find('\n', begin) + 1;
    EXPECT_EQ(stacks.substr(line, stacks.find('\n', line) - line), "(does not take signals)");
  }
}

TEST(RankMessages, HN045_are_taken_when_they_are_whole) {
  std::string bytes = encode({Message::Kind::kFailure, 7, "first"}) + encode({Message::Kind::kStacks, 8, ""});
  std::string part = bytes.substr(0, 10);
  EXPECT_FALSE(take_message(part));
  const auto first = take_message(bytes), second = take_message(bytes);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->text, "first");
  EXPECT_EQ(first->time_ns, 7);
  EXPECT_EQ(second->kind, Message::Kind::kStacks);
  EXPECT_EQ(bytes, "");
}

}  // namespace
}  // namespace shard::test

/// \file
/// The processes of a test's ranks, seen from both ends. Tests use multi_process_test.h.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shard::test {

// --- The parent's end -----------------------------------------------------------------------------------------------

/// How a rank ended.
struct RankResult {
  int rank = 0;
  pid_t pid = 0;
  std::optional<int> exit_code{};       ///< Minus the signal that ended it; nothing if the parent ended it.
  std::vector<std::string> failures{};  ///< Texts, in their order.
  std::int64_t first_failure_ns = 0;    ///< On the machine's steady clock.
  std::string skip_reason{};
};

/// The result of the parent's test.
struct Verdict {
  enum class Kind { kPass, kFail, kSkip } kind = Kind::kPass;
  std::string text{};
};

/// Reports failed ranks first, in the order in which they failed, then ranks that the parent ended. If there are none,
/// all codes must be equal: 0, or a skip's.
Verdict check_return_codes(std::span<const RankResult> ranks, std::chrono::duration<double> elapsed);
/// Checks that all ranks ended by themselves, and none with 10.
Verdict check_no_test_errors(std::span<const RankResult> ranks, std::chrono::duration<double> elapsed);

/// One process per rank of the running test. Threads: one.
class RankProcesses {
 public:
  /// Starts them. \throws std::system_error
  RankProcesses(int world_size, const std::string& file_name);
  ~RankProcesses();  ///< Ends the remaining processes.
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  /// Waits until all have ended. Ends the others if one returns 10 or (`signals_are_failures`) dies of a signal, and
  /// after `timeout`. Before that, remaining ranks print their stacks to stderr. Cost: after the timeout, up to 5 s for
  /// the stacks and 3 s for ranks that ignore SIGTERM.
  void join(std::chrono::milliseconds timeout, bool signals_are_failures);
  std::vector<RankResult> results() const;
  std::chrono::duration<double> elapsed() const { return elapsed_; }

 private:
  struct Process;
  void start(int rank, int world_size, const std::string& file_name);
  void receive(std::chrono::milliseconds at_most);
  void reap();
  bool all_ended() const;
  const Process* first_failed(bool signals_are_failures) const;
  void show_stacks();
  /// `failed`: whether a rank has failed. A crash of a different rank also counts, even if it is detected only now.
  void terminate(bool failed);

  std::vector<Process> processes_;
  std::chrono::duration<double> elapsed_{};
};

// --- The rank's end -------------------------------------------------------------------------------------------------

/// The settings of a rank in its environment; nothing in the parent.
struct RankContext {
  int rank;
  std::string file_name;
  int socket;
};
const std::optional<RankContext>& rank_context();

/// Call it before RUN_ALL_TESTS. Ends this process with the parent, reports failed assertions to it, and suppresses
/// GoogleTest's output.
void become_rank(const RankContext& context);
/// Runs the test's body while it answers the parent, and ends the process with the code of the result.
[[noreturn]] void run_rank_and_exit(const RankContext& context, const std::function<void()>& body);

}  // namespace shard::test

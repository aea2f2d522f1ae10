/// Every call of a whole output, failed in turn: afterwards the destination is the old one, or, only when commit()
/// returned, the new one. With every pair of calls: the old content is still somewhere.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "libshard/core/error.h"
#include "libshard/io/local_disk.h"
#include "tests/support/bytes.h"
#include "tests/support/memory_disk.h"
#include "tests/support/written_output.h"

namespace shard {
namespace {

using test::as_span;
using test::as_text;
using test::WrittenOutput;

struct Case {
  const char* name;
  bool folder, force, exchange;
};

class OutputFailures : public ::testing::TestWithParam<Case> {
 protected:
  struct Outcome {
    bool committed = false, failed = false;
    std::string content;  ///< The state of the destination: "old", "new", "none" or a mixture.
    std::vector<std::string> left;
    int open_files = 0;
    bool remove_failed = false;
    bool has_old = false;  ///< A file anywhere has the old content.
    std::string error;     ///< The failure's message and hint.
  };

  static std::string new_file(const std::string& folder) { return GetParam().folder ? folder + "/a.bin" : folder; }

  static void run(LocalDisk& fs) {
    WrittenOutput::Files files{{"a.bin", "new"}};
    if (GetParam().folder) files.push_back({"sub/b.bin", "new"});
    WrittenOutput(fs, "/out", files, {.force = GetParam().force}, GetParam().folder).commit();
  }

  static std::string text_of(const MemoryState& state, const std::string& path) {
    try {
      return as_text(state.content(path));
    } catch (const Error&) {  // A folder.
      return "";
    }
  }

  static std::string content_of(const MemoryState& state) {
    std::string all;
    for (const std::string& path : state.paths()) {
      if (!path.starts_with("/out")) continue;
      const std::string text = text_of(state, path);
      if (all.find(text) == all.npos) all += text;
    }
    return all.empty() ? "none" : all;
  }

  static Outcome outcome_of(std::int64_t failing_call, std::int64_t second = -1) {
    const auto state = std::make_shared<MemoryState>();
    state->without_exchange(!GetParam().exchange);
    if (GetParam().force) state->put(new_file("/out"), as_span("old"));
    const auto fs = make_memory_disk(state);
    state->fail_at(failing_call);
    state->fail_also_at(second);
    Outcome outcome;
    try {
      run(*fs);
      outcome.committed = true;
    } catch (const Error& error) {
      outcome.error = std::string(error.what()) + error.hint();
    }
    outcome.failed = state->calls() > failing_call;
    outcome.content = content_of(*state);
    outcome.open_files = state->open_files();
    for (const std::string& path : state->paths()) {
      if (path.starts_with("/.out")) outcome.left.push_back(path);
      outcome.has_old = outcome.has_old || text_of(*state, path) == "old";
    }
    std::vector<std::string> log = state->log();
    std::erase_if(log, [](const std::string& line) { return line.starts_with("expect_sync"); });  // No calls.
    outcome.remove_failed = outcome.failed && log[static_cast<std::size_t>(failing_call)].starts_with("remove");
    return outcome;
  }
};

TEST_P(OutputFailures, DestinationIsOldOrCommittedAndNothingLeaks) {
  const std::string old = GetParam().force ? "old" : "none";
  std::int64_t call = 0;
  for (;; ++call) {
    const Outcome outcome = outcome_of(call);
    ASSERT_EQ(outcome.content, outcome.committed ? "new" : old) << "call " << call;
    ASSERT_EQ(outcome.open_files, 0) << "call " << call;
    ASSERT_TRUE(outcome.left.empty() || outcome.remove_failed) << "call " << call;
    if (!outcome.failed) {
      ASSERT_TRUE(outcome.committed);
      break;
    }
  }
  EXPECT_GT(call, 12);
}

class TwoOutputFailures : public OutputFailures {};

TEST_P(TwoOutputFailures, NeverRemoveTheOldContent) {
  int kept_aside = 0;
  for (std::int64_t first = 0; outcome_of(first).failed; ++first) {
    for (std::int64_t second = first + 1; second < first + 12; ++second) {
      const Outcome outcome = outcome_of(first, second);
      if (outcome.committed) continue;
      ASSERT_TRUE(outcome.has_old) << "calls " << first << " and " << second << ": " << outcome.error;
      if (outcome.content == "old") continue;
      ++kept_aside;
      ASSERT_NE(outcome.error.find(fmt::format("failure of call {} ", first)), std::string::npos) << outcome.error;
      ASSERT_NE(outcome.error.find("the old output could not be put back: it is /.out.shardctl-old-"),
                std::string::npos)
          << outcome.error;
    }
  }
  EXPECT_GT(kept_aside, 0);
}

INSTANTIATE_TEST_SUITE_P(All, OutputFailures,
                         ::testing::Values(Case{"Folder", true, false, true}, Case{"FolderForce", true, true, true},
                                           Case{"FolderForceBySteps", true, true, false},
                                           Case{"File", false, false, true}, Case{"FileForce", false, true, true},
                                           Case{"FileForceBySteps", false, true, false}),
                         [](const auto& tested) { return tested.param.name; });

INSTANTIATE_TEST_SUITE_P(All, TwoOutputFailures,
                         ::testing::Values(Case{"FolderForce", true, true, true},
                                           Case{"FolderForceBySteps", true, true, false},
                                           Case{"FileForce", false, true, true},
                                           Case{"FileForceBySteps", false, true, false}),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace shard

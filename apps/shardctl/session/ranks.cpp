#include "apps/shardctl/session/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "apps/shardctl/request/command_text.h"
#include "apps/shardctl/session/versions.h"
#include "libshard/core/error.h"
#include "libshard/core/json_writer.h"
#include "libshard/ranks/open_group.h"

namespace shard::app {
namespace {

/// The command line without the words that may differ between ranks.
std::string common_arguments(const std::vector<std::string>& arguments) {
  constexpr std::array<std::string_view, 2> kOwn{"--rank", "--log-file"};
  std::string text;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const std::string_view name = std::string_view(word).substr(0, word.find('='));
    if (std::find(kOwn.begin(), kOwn.end(), name) == kOwn.end()) {
      text += (text.empty() ? "" : " ") + shell_quoted(word);
    } else if (name.size() == word.size()) {
      ++i;  // The next word is its value.
    }
  }
  return text;
}

/// The options of `run` that describe this rank, with their values.
std::string rank_options(const RunRequest& run) {
  std::vector<std::string> given;
  if (run.rank) given.push_back(fmt::format("--rank is {}", *run.rank));
  if (run.world_size) given.push_back(fmt::format("--world-size is {}", *run.world_size));
  if (!run.rdzv.empty()) given.push_back(fmt::format("--rdzv is {}", run.rdzv));
  return fmt::format("{}", fmt::join(given, ", "));
}

}  // namespace

Launch launch_of(const Session& session, const RunRequest& run) try {
  LaunchOptions wanted;
  wanted.launcher = run.launcher;
  wanted.rank = run.rank;
  wanted.world_size = run.world_size;
  wanted.rdzv = run.rdzv;
  return detect_launch(
      wanted, [&](std::string_view name) { return session.env ? session.env(std::string(name)) : std::nullopt; });
} catch (const Error& error) {
  if (!error.why().empty()) throw;
  throw Error(error).because(rank_options(run));
}

std::chrono::milliseconds timeout_of(const RunRequest& run) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(run.timeout * 1000));
}

std::unique_ptr<Group> join_group(const RunRequest& run, const Launch& launch) {
  if (launch.size == 1) return nullptr;
  GroupRequest request;
  request.launch = launch;
  request.timeout = timeout_of(run);
  std::unique_ptr<Group> group = open_group(request, run.backend);
  group->set_timeout(request.timeout);
  return group;
}

void check_same_job(Group& group, const TypedCommand& command) {
  if (group.size() == 1) return;
  expect_same(group, own_version(), ErrorCode::kPeer, "different versions of shardctl");
  expect_same(group, common_arguments(command.arguments), ErrorCode::kInvalidArgument, "different command lines");
  std::vector<std::string> settings = command.settings;
  std::ranges::sort(settings);  // One rank may set an option in its environment, and another one in its file.
  expect_same(group, fmt::format("{}", fmt::join(settings, " ")), ErrorCode::kInvalidArgument,
              "different options from the environment or --config");
}

void begin_step(const Session& session, std::string_view step) {
  if (session.on_step) session.on_step(session.group->rank(), step);
}

void on_all_ranks(const Session& session, std::string_view step, const std::function<void()>& work) {
  collective_step(*session.group, {.stop = session.stop, .traffic = session.peer_store}, [&](const std::stop_token&) {
    begin_step(session, step);
    work();
  });
}

void on_all_ranks(const Session& session, const std::atomic<std::int64_t>& own, std::atomic<std::int64_t>& others,
                  LateRanks* awaited, const std::function<void(const std::stop_token&)>& work) {
  CollectiveStepOptions options{.stop = session.stop};
  options.traffic = session.peer_store;
  options.awaited = awaited;
  options.done_bytes = [&own] { return own.load(); };
  options.on_sum = [&](std::int64_t sum) { others = sum - own.load(); };
  collective_step(*session.group, options, work);
}

int on_rank_zero(const Session& session, const std::function<int()>& work) {
  int result = 0;
  on_all_ranks(session, "catalog", [&] {
    if (is_rank_zero(session)) result = work();
  });
  session.group->broadcast(std::as_writable_bytes(std::span(&result, 1)), 0);
  return result;
}

std::unique_ptr<Log> open_log(const Session& session) {
  std::unique_ptr<Log> log;
  collective_step(*session.group, {.stop = session.stop},
                  [&](const std::stop_token&) { log = std::make_unique<Log>(session); });
  return log;
}

void expect_unchanged_source(const Session& session) {
  collective_step(*session.group, {.stop = session.stop}, [&](const std::stop_token&) {
    if (session.watched != nullptr) session.watched->expect_unchanged();
  });
}

bool is_rank_zero(const Session& session) { return session.group->rank() == 0; }

PassOptions pass_options(const Session& session) { return {worker_count(session), reading_memory_bytes(session)}; }

void write_error_file(LocalDisk& fs, const std::string& path, const std::string& message) {
  if (path.empty()) return;
  using std::chrono::seconds;
  // torchrun takes the earliest stamp for the root cause. Stamps are whole seconds, and ranks without a file get the
  // time of their end, so this one is a second early.
  const auto told = std::chrono::system_clock::now().time_since_epoch() - seconds(1);
  std::string text;
  JsonWriter json(text, {JsonEscapes::kNone, true});
  json.begin_object();
  json.key("message"), json.string(message);
  json.key("timestamp"), json.number(std::chrono::duration_cast<seconds>(told).count());
  json.end_object();
  json.end_line();
  try {
    if (fs.exists(path) && !fs.is_file(path)) return;  // With --log-dir /dev/null, torchrun names that device.
    fs.remove_all(path);
    const auto file = fs.create(path);
    file->write_at(0, std::as_bytes(std::span(text)));
    file->close();
  } catch (const Error&) {
    return;  // The message is on stderr as well.
  }
}

}  // namespace shard::app

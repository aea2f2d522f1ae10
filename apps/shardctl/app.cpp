#include "apps/shardctl/app.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

#include "apps/shardctl/arguments/command_line.h"
#include "apps/shardctl/arguments/help.h"
#include "apps/shardctl/render/report.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/taken_source.h"
#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/verbs/verbs.h"
#include "libshard/core/error.h"
#include "libshard/core/processor.h"
#include "libshard/device/device_system.h"
#include "libshard/io/paths.h"
#include "libshard/io/stoppable_store.h"
#include "libshard/io/url_path.h"
#include "libshard/ranks/thread_group.h"
#include "libshard/stores/url_store.h"

namespace shard::app {
namespace {

int dispatch(Session& session, const Request& request) {
  if (request.help) return run_help(session, request);
  if (request.version) return run_version_line(session);
  if (request.verb != nullptr) {
    Request taken = request;
    if (!request.verb->sources_as_named) take_sources(session, taken.read, request.verb->each_source);
    return request.verb->run(session, taken);
  }
  TextSink(session.err).lines(short_help());
  return exit_code_for(ErrorCode::kInvalidArgument);
}

/// Flushes stdout and checks it. A closed pipe is not an error, because its reader has seen enough; any other failure
/// to write is one. A writing verb only warns, because its DST is complete.
void check_stdout(const Session& session, const Request& request) {
  if (!is_rank_zero(session)) return;  // Other ranks print no data.
  session.out.flush();
  if (session.out.good() || session.out_error() == EPIPE) return;
  const bool has_written = !request.write.path.empty() && !request.write.dry_run;
  if (has_written) return warn(session, "cannot write to standard output");
  throw Error(ErrorCode::kResource, "cannot write to standard output")
      .because(std::strerror(session.out_error()))
      .of_rank(0);
}

bool reads_urls(const Request& request) {
  return std::ranges::any_of(request.read.paths, is_url) || std::ranges::any_of(request.read.named_inputs, is_url) ||
         is_url(request.read.numbers.hf_ref);
}

/// Refuses relative paths if the working directory was removed. Calls with them would fail as if the files were
/// missing.
void check_working_folder(const Request& request) {
  if (request.verb == nullptr || !request.verb->uses.sources) return;
  std::error_code failure;
  const auto folder = std::filesystem::current_path(failure);
  if (failure != std::errc::no_such_file_or_directory) return;
  const auto check = [](const std::string& path, ErrorCode code, const char* what) {
    if (path.empty() || path.starts_with('/') || is_url(path)) return;
    throw Error(code, fmt::format("{}: the working directory was removed", what))
        .in_file(path)
        .hint("change to a folder that exists, and run the command again");
  };
  for (const std::string& path : request.read.paths) check(path, ErrorCode::kNotFound, "cannot read");
  for (const std::string& path : {request.write.path, request.page.path}) {
    check(path, ErrorCode::kResource, "cannot write");
  }
}

/// Finds out how many requests hide the round trips of the disks and of the stores that are read.
void look_at_disks(Session& session, const Request& request) {
  const auto look = [&session](const std::string& path) {
    const int requests = is_url(path) ? kUrlRequestsAtOnce : session.fs.requests_at_once(path);
    session.requests_at_once = std::max(session.requests_at_once, requests);
  };
  std::ranges::for_each(request.read.paths, look);
  if (!request.write.path.empty() && !is_url(request.write.path)) look(parent_path(request.write.path));
}

/// The threads that read different places of URLs at one time: one per processor. Further workers wait for requests.
int url_readers(const Session& session) { return std::min(worker_count(session), usable_processors()); }

/// Gives parts of --max-memory to the blocks of URLs that are read, and half of it to uploads.
void divide_memory(Session& session, const Request& request) {
  const bool writes_url = is_url(request.write.path);
  if (!writes_url && !reads_urls(request)) return;
  std::int64_t all = max_memory_bytes(session);
  StoreOptions& stores = session.common.stores;
  if (writes_url) {
    stores.upload_bytes = all / 2;
    all -= stores.upload_bytes;
  }
  if (reads_urls(request)) {
    stores.memory_bytes = url_memory_bytes(all, stores.connections, url_readers(session));
    all -= stores.memory_bytes;
  }
  session.common.max_memory = std::to_string(all);
}

/// The store of a session's paths.
UrlStore::Options store_options(const Session& session) {
  static constexpr std::chrono::seconds kQuiet{3};  // Shorter waits print nothing.
  const auto request = [&session] {
    const StoreOptions& stated = session.common.stores;
    return StoreRequest{.endpoint = stated.endpoint_url,
                        .region = stated.region,
                        .is_anonymous = stated.anonymous,
                        .connections = stated.connections,
                        .readers = url_readers(session),
                        .memory_bytes = stated.memory_bytes};
  };
  using Clock = std::chrono::steady_clock;
  const auto shown = std::make_shared<std::atomic<Clock::time_point>>();
  const auto waits = [&session, shown](const std::string& text) {
    const Clock::time_point now = Clock::now(), before = shown->load();
    if (before == Clock::time_point()) shown->store(now);
    if (before == Clock::time_point() || now - before < kQuiet) return;
    shown->store(now);
    note(session, text);
  };
  return {.request = request, .is_stopped = [&session] { return session.stop.stop_requested(); }, .waits = waits};
}

bool has_ranks(const Request& request) {
  return !request.help && !request.version && request.verb != nullptr && request.verb->uses.ranks;
}

void take_launch(const Launch& launch, Session& session) {
  session.launch = {launch.error_file, launch.rank, launch.size, launch.local_rank};
  session.ranks_here = launch.local_size;
}

int run_verb(Session& session, const Request& request) {
  try {
    if (session.group->size() > 1) check_same_job(*session.group, session.command);
    const int code = dispatch(session, request);
    check_stdout(session, request);
    return code;
  } catch (const Error&) {
    return report(session, request, std::current_exception());
  } catch (...) {
    session.group->abort();  // All ranks learn of an Error, but not of this exception.
    Error own = as_error(std::current_exception());
    if (session.group->size() > 1) own.of_rank(session.group->rank());
    return report(session, request, std::make_exception_ptr(own));
  }
}

int run_alone(Session& session, const Request& request) {
  const UrlStore urls(session.fs, store_options(session));
  const StoppableStore store(urls, [&session] { return session.stop.stop_requested(); });
  const WatchedStore watched(store, session.requests_at_once);
  session.watched = &watched;
  session.urls = &urls;
  const int code = run_verb(session, request);
  session.watched = nullptr;
  session.urls = nullptr;
  return code;
}

/// Passes each write on as a whole: ranks that are threads share the stream.
class WholeWrites final : public std::stringbuf {
 public:
  explicit WholeWrites(std::ostream& to) : to_(to) {}

 private:
  int sync() override {
    static std::mutex mutex;
    const std::scoped_lock lock(mutex);
    to_ << str() << std::flush;
    str({});
    return 0;
  }

  std::ostream& to_;
};

/// Runs as one rank of `group`. Only rank 0 prints data.
int run_as_rank(const Session& session, const Request& request, Group& group) {
  std::ostream nowhere(nullptr);
  WholeWrites writes(session.err);
  std::ostream err(&writes);
  err << std::unitbuf;
  const UrlStore store(session.fs, store_options(session));
  const WatchedStore watched(store, session.requests_at_once);
  std::optional<GroupStore> parts;
  if (request.run.local_input) parts.emplace(watched, group.rank());
  Session own{.fs = session.fs,
              .out = group.rank() == 0 ? session.out : nowhere,
              .err = err,
              .out_is_terminal = session.out_is_terminal,
              .err_is_terminal = session.err_is_terminal,
              .env = session.env,
              .stop = session.stop,
              .stop_signal = session.stop_signal,
              .out_error = session.out_error,
              .end_at_once = {},  // All ranks end together.
              .mute_signals = {},
              .on_step = session.on_step,
              .group = &group,
              .peer_store = parts ? &*parts : nullptr,
              .watched = &watched,
              .urls = &store,
              .common = session.common,
              .command = session.command,
              .launch = session.launch,
              .ranks_here = session.ranks_here,
              .requests_at_once = session.requests_at_once};
  return run_verb(own, request);
}

/// The memory of each local rank: its share of the process's memory, but at least the minimum that a rank needs.
std::string memory_of_rank(const Session& session, const RunRequest& ranks) {
  const std::int64_t all = max_memory_bytes(session), least = (ranks.local_input ? 8 : 1) << 20;
  return std::to_string(ranks.device != "cpu" ? all : std::max(std::min(all, least), all / ranks.local_ranks));
}

/// Refuses --backend nccl if there are fewer GPUs than ranks. Threads do not need NCCL, so this option asks for one GPU
/// per rank.
void check_local_backend(const RunRequest& ranks) {
  if (ranks.backend != "nccl") return;
  const std::size_t devices = describe_devices().devices.size();
  if (std::cmp_greater_equal(devices, ranks.local_ranks)) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("backend 'nccl' cannot serve {} local ranks on {} GPUs", ranks.local_ranks, devices))
      .because("NCCL needs a separate GPU for each rank")
      .hint("drop --backend");
}

/// The exit code of a job whose ranks have these codes. The rank with the cause determines it, because a rank without
/// memory cannot send its error: the others only learn that it gave up.
int code_of_job(const std::vector<int>& codes) {
  const int gave_up = exit_code_for(ErrorCode::kPeer);
  const auto cause = std::ranges::find_if(codes, [&](int code) { return code != 0 && code != gave_up; });
  return codes[0] == gave_up && cause != codes.end() ? *cause : codes[0];
}

/// Runs the ranks of --local-ranks as threads.
int run_local_ranks(Session& session, const Request& request) {
  const int ranks = request.run.local_ranks;
  if (const Launch launch = launch_of(session, request.run); launch.size > 1) {
    throw usage(fmt::format("cannot run --local-ranks {} in rank {} of {}", ranks, launch.rank, launch.size))
        .hint("drop --local-ranks, or add --launcher none");
  }
  check_local_backend(request.run);
  session.ranks_here = ranks;
  session.common.max_memory = memory_of_rank(session, request.run);
  session.common.stores.memory_bytes /= ranks;
  session.common.stores.upload_bytes /= ranks;
  std::vector<int> codes(static_cast<std::size_t>(ranks));
  run_as_threads(ranks, [&](Group& group) {
    group.set_timeout(timeout_of(request.run));
    if (session.on_step) session.on_step(group.rank(), "rendezvous");
    codes[static_cast<std::size_t>(group.rank())] = run_as_rank(session, request, group);
  });
  return code_of_job(codes);
}

/// Reads the launcher's variables before the command line is parsed, so that the ranks report a usage error together,
/// once, and to the launcher. Bad launcher variables become an error only after parsing.
void expect_launch(Session& session) {
  try {
    take_launch(launch_of(session, RunRequest()), session);
  } catch (const Error&) {
    return;
  }
}

int run_launched(Session& session, Request& request) {
  const Launch launch = launch_of(session, request.run);
  take_launch(launch, session);
  if (launch.rank > 0 && session.mute_signals) session.mute_signals();
  // mpirun gives each rank its own terminal, regardless of where the output goes.
  if (launch.launcher == Launcher::kOpenMpi) session.out_is_terminal = false;
  if (session.on_step) session.on_step(launch.rank, "rendezvous");
  const std::unique_ptr<Group> group = join_group(request.run, launch);
  return group == nullptr ? run_alone(session, request) : run_as_rank(session, request, *group);
}

}  // namespace

int run(const std::vector<std::string>& arguments, Session& session) {
  Request request;
  try {
    expect_launch(session);
    parse_command_line(arguments, session, request);
    check_working_folder(request);
    look_at_disks(session, request);
    divide_memory(session, request);
    if (!has_ranks(request)) return run_alone(session, request);
    if (request.run.local_ranks > 0) return run_local_ranks(session, request);
    return run_launched(session, request);
  } catch (...) {
    return report(session, request, std::current_exception());
  }
}

}  // namespace shard::app

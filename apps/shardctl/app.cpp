#include "apps/shardctl/app.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "apps/shardctl/command_line.h"
#include "apps/shardctl/help.h"
#include "apps/shardctl/ranks.h"
#include "apps/shardctl/report.h"
#include "apps/shardctl/test_door.h"
#include "apps/shardctl/verbs.h"
#include "libshard/ranks/thread_group.h"

namespace shard::app {
namespace {

struct Verb {
  std::string_view name;
  int (*run)(Session&, const Options&);
};
constexpr std::array<Verb, 11> kVerbs{{{"inspect", run_inspect},
                                       {"split", run_copy},
                                       {"gather", run_copy},
                                       {"reshard", run_copy},
                                       {"convert", run_copy},
                                       {"diff", run_diff},
                                       {"digest", run_digest},
                                       {"cat", run_cat},
                                       {"env", run_env},
                                       {"completion", run_completion},
                                       {"version", run_version}}};

int dispatch(Session& session, const Options& options) {
  if (options.help) return run_help(session, options);
  if (options.version) return run_version_line(session);
  for (const Verb& verb : kVerbs) {
    if (verb.name == options.verb) return verb.run(session, options);
  }
  session.err << short_help();
  return exit_code_for(ErrorCode::kInvalidArgument);
}

/// A reader that closed the pipe has seen enough; any other failure to write the data is one. After a writing verb DST
/// is complete, whatever became of the words about it.
void check_stdout(const Session& session, const Options& options) {
  if (!is_rank_zero(session)) return;  // Its output goes nowhere.
  session.out.flush();
  if (session.out.good() || session.out_error() == EPIPE) return;
  if (!options.output.empty() && !options.dry_run) return warn(session, options, "cannot write to standard output");
  throw Error(ErrorCode::kResource, "cannot write to standard output")
      .because(std::strerror(session.out_error()))
      .of_rank(0);
}

bool has_ranks(const Options& options) {
  return !options.help && !options.version && !options.verb.empty() && options.verb != "env" &&
         options.verb != "completion" && options.verb != "version";
}

int run_verb(Session& session, const Options& options) {
  try {
    if (session.group->size() > 1) check_same_job(*session.group, options);
    const int code = dispatch(session, options);
    check_stdout(session, options);
    return code;
  } catch (...) {
    return report(session, options, std::current_exception());
  }
}

/// Runs as one rank of `group`: only rank 0 prints data.
int run_as_rank(const Session& session, const Options& options, Group& group) {
  std::ostream nowhere(nullptr);
  Session own{.fs = session.fs,
              .out = group.rank() == 0 ? session.out : nowhere,
              .err = session.err,
              .out_is_terminal = session.out_is_terminal,
              .err_is_terminal = session.err_is_terminal,
              .env = session.env,
              .stop = session.stop,
              .stop_signal = session.stop_signal,
              .out_error = session.out_error,
              .end_at_once = {},  // Ranks end together.
              .mute_signals = {},
              .group = &group};
  return run_verb(own, options);
}

/// Runs the ranks of --local-ranks as threads.
int run_local_ranks(const Session& session, Options options) {
  if (const Launch launch = launch_of(session, options); launch.size > 1) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("--local-ranks {}, but this process is rank {} of {} already",
                                                         options.ranks.local_ranks, launch.rank, launch.size))
        .hint("leave it out, or add --launcher none");
  }
  options.ranks_here = options.ranks.local_ranks;
  std::vector<int> codes(static_cast<std::size_t>(options.ranks.local_ranks));
  run_as_threads(options.ranks.local_ranks, [&](Group& group) {
    group.set_timeout(std::chrono::milliseconds(static_cast<std::int64_t>(options.ranks.timeout * 1000)));
    pass_step(session, group.rank(), "rendezvous");
    codes[static_cast<std::size_t>(group.rank())] = run_as_rank(session, options, group);
  });
  return codes[0];
}

void take_over(const Launch& launch, Options& options) {
  options.error_file = launch.error_file;
  options.ranks_here = launch.local_size;
  options.launch_rank = launch.rank;
  options.launch_size = launch.size;
}

/// So that a mistake in the command line is told once by all ranks, and to the launcher; not an error before it is
/// read.
void expect_launch(const Session& session, Options& options) {
  try {
    take_over(launch_of(session, options), options);
  } catch (const Error&) {
    return;
  }
}

int run_launched(Session& session, Options& options) {
  const Launch launch = launch_of(session, options);
  take_over(launch, options);
  if (launch.rank > 0 && session.mute_signals) session.mute_signals();
  // mpirun gives ranks a terminal of its own, wherever their output goes.
  if (launch.launcher == Launcher::kOpenMpi) session.out_is_terminal = false;
  pass_step(session, launch.rank, "rendezvous");
  const std::unique_ptr<Group> group = join_group(options, launch);
  return group == nullptr ? run_verb(session, options) : run_as_rank(session, options, *group);
}

}  // namespace

int run(const std::vector<std::string>& arguments, Session& session) {
  Options options;
  try {
    expect_launch(session, options);
    parse_command_line(arguments, session, options);
    if (!has_ranks(options)) return run_verb(session, options);
    if (options.ranks.local_ranks > 0) return run_local_ranks(session, options);
    return run_launched(session, options);
  } catch (...) {
    return report(session, options, std::current_exception());
  }
}

}  // namespace shard::app

#include "apps/shardctl/app.h"

#include <array>
#include <cerrno>
#include <cstring>

#include "apps/shardctl/command_line.h"
#include "apps/shardctl/help.h"
#include "apps/shardctl/report.h"
#include "apps/shardctl/verbs.h"

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
  session.out.flush();
  if (session.out.good() || session.out_error() == EPIPE) return;
  if (!options.output.empty() && !options.dry_run) return warn(session, options, "cannot write to standard output");
  throw Error(ErrorCode::kResource, "cannot write to standard output").because(std::strerror(session.out_error()));
}

}  // namespace

int run(const std::vector<std::string>& arguments, Session& session) {
  Options options;
  try {
    parse_command_line(arguments, session, options);
    const int code = dispatch(session, options);
    check_stdout(session, options);
    return code;
  } catch (...) {
    return report(session, options, std::current_exception());
  }
}

}  // namespace shard::app

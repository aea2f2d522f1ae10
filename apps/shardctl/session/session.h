/// \file
/// Session: a verb's environment: streams, file system, ranks, output settings. Injected, so that tests can run every
/// verb in one process.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <stop_token>
#include <string>
#include <vector>

#include "libshard/io/local_disk.h"
#include "libshard/io/watched_store.h"
#include "libshard/job/group_store.h"
#include "libshard/ranks/group.h"

namespace shard::app {

/// How to print and how to work: the options of every verb.
struct CommonOptions {
  bool json = false, quiet = false;
  int verbose = 0;  ///< Number of -v.
  std::string log_file, config, color = "auto", progress = "auto";
  int threads = 0;  ///< 0: all available CPUs.
  std::string max_memory = "64MiB";
};

/// The command line as typed, for texts that name the verb and hints that repeat the line.
struct TypedCommand {
  std::string verb;  ///< May be the name of a verb that does not exist.
  std::vector<std::string> arguments;
};

/// What the launcher says about this process.
struct LaunchFacts {
  std::string error_file;  ///< torchrun shows its content.
  int rank = 0, size = 1;  ///< Until there is a group.
  int local_rank = 0;
};
struct OpenedMap;

struct Session {
  LocalDisk& fs;
  std::ostream& out;  ///< Data, and nothing else.
  std::ostream& err;  ///< Everything else.
  bool out_is_terminal = false, err_is_terminal = false;
  std::function<std::optional<std::string>(const std::string& name)> env;  ///< An environment variable.
  std::stop_token stop;
  /// The signal that asked to stop, or 0.
  std::function<int()> stop_signal = [] { return 0; };
  /// The errno of the first failed write to `out`, or 0.
  std::function<int()> out_error = [] { return 0; };
  /// Called once nothing has to be cleaned up any more: a signal may end the process at once. May be empty.
  std::function<void()> end_at_once;
  /// Called where another rank says what a signal does. May be empty.
  std::function<void()> mute_signals{};
  /// Called by each rank before each step of a job. May be empty.
  std::function<void(int rank, std::string_view step)> on_step{};
  /// The ranks of this job; verbs use it through ranks.h. Ownership: outlives the session.
  Group* group = &solo_group();
  /// With --local-input: what all ranks hold of SRC, while they take a step together (on_all_ranks). Else null.
  GroupStore* parts = nullptr;
  /// The source files opened by this rank, to be rechecked after reading. Null: no check.
  const WatchedStore* watched = nullptr;
  CommonOptions common{};  ///< Filled by parse_command_line, as is `command`.
  TypedCommand command{};
  LaunchFacts launch{};
  /// What the document of an error lists besides, filled by verbs: a line for each thing that is wrong.
  std::vector<std::string> error_details{};
  /// The model maps of this run by name; open_map fills it.
  mutable std::map<std::string, std::shared_ptr<const OpenedMap>> opened_maps{};
  int ranks_here = 1;  ///< Ranks that share this machine's CPUs.
};

/// This rank's own disk, as this run sees it.
inline const SourceStore& own_store(const Session& session) {
  if (session.watched != nullptr) return *session.watched;
  return session.fs;
}

/// Where SRC is read: from the disk, or with --local-input from all ranks'.
inline const SourceStore& source_store(const Session& session) {
  if (session.parts != nullptr) return *session.parts;
  return own_store(session);
}

/// "rank 1 of 4", for people; empty where this process is alone.
std::string rank_label(const Session& session);
/// CPUs that this process may use; at least 1.
int usable_cpus();
/// Worker threads: what was asked for, else this rank's share of the available CPUs.
int worker_count(const Session& session);
/// --max-memory. \throws Error kInvalidArgument  not a size.
std::int64_t max_memory_bytes(const Session& session);
/// What a reading verb may take of it: with --local-input the store of all ranks' files takes a part.
/// \throws Error kInvalidArgument  also where too little is left.
std::int64_t reading_memory_bytes(const Session& session);

/// Whether `err` may be coloured: --color, NO_COLOR, TERM=dumb, and whether it is a terminal.
bool colours_errors(const Session& session);

/// A line on stderr that begins with "shardctl: "; not with --quiet. In --log-file in any case, as are warnings.
void note(const Session& session, const std::string& text);
/// "shardctl: warning: ..." on stderr; not with --quiet.
void warn(const Session& session, const std::string& text);
/// A line for each of the first few, and one that says how many more there are.
void warn_all(const Session& session, const std::vector<std::string>& texts);

}  // namespace shard::app

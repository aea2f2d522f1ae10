/// \file
/// Session: the environment of a verb (streams, file system, ranks, output settings). It is injected, so that tests can
/// run every verb in one process.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <stop_token>
#include <string>
#include <vector>

#include "formats/open/source.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/watched_store.h"
#include "libshard/job/group_store.h"
#include "libshard/ranks/group.h"

namespace shard {
class UrlStore;
}

namespace shard::app {

/// Options of object stores.
struct StoreOptions {
  std::string endpoint_url, region;
  bool anonymous = false;
  int connections = 8;
  std::int64_t memory_bytes = 8 << 20;   ///< The part of --max-memory for blocks of their files.
  std::int64_t upload_bytes = 32 << 20;  ///< The part of --max-memory for parts of uploads.
};

/// Options of every verb for output and resources.
struct CommonOptions {
  bool json = false, quiet = false;
  int verbose = 0;  ///< How often -v was given.
  std::string log_file, config, color = "auto", progress = "auto";
  int threads = 0;  ///< 0: all available CPUs.
  std::string max_memory = "64MiB";
  StoreOptions stores{};
};

/// An option's value that is not from the command line.
struct Setting {
  std::string option, value;  ///< "ranks", "4".
  std::string origin;         ///< The environment variable, or the configuration file.
  bool is_flag = false;
};

/// The command line as typed, for texts that name the verb and for hints that repeat the command.
struct TypedCommand {
  std::string verb;  ///< May name a verb that does not exist.
  std::vector<std::string> arguments;
  /// Options from the environment and the file of --config as "--NAME=VALUE", except those that concern one process.
  std::vector<std::string> settings{};
  std::vector<Setting> origins{};  ///< All options from the environment and the file of --config.
};

/// The launcher's variables for this process.
struct LaunchFacts {
  std::string error_file;  ///< The file whose content torchrun shows.
  int rank = 0, size = 1;  ///< Valid until there is a group.
  int local_rank = 0;
};

struct Session {
  LocalDisk& fs;
  std::ostream& out;  ///< Data only.
  std::ostream& err;  ///< All other output.
  bool out_is_terminal = false, err_is_terminal = false;
  std::function<std::optional<std::string>(const std::string& name)> env;  ///< Returns an environment variable.
  std::stop_token stop;
  /// The signal that asked to stop, or 0.
  std::function<int()> stop_signal = [] { return 0; };
  /// The errno of the first failed write to `out`, or 0.
  std::function<int()> out_error = [] { return 0; };
  /// Called once no cleanup is needed any more, so that a signal may end the process at once. May be empty.
  std::function<void()> end_at_once;
  /// Called if a different rank prints the message about a signal. May be empty.
  std::function<void()> mute_signals{};
  /// Called by each rank before each step of a job. May be empty.
  std::function<void(int rank, std::string_view step)> on_step{};
  /// The ranks of this job; verbs use it through ranks.h. Ownership: outlives the session.
  Group* group = &solo_group();
  /// With --local-input: the files of SRC on all ranks, in a step of all ranks (on_all_ranks). Otherwise null.
  GroupStore* peer_store = nullptr;
  /// The source files that this rank opened, to be rechecked after reading. Null: no check.
  const WatchedStore* watched = nullptr;
  const UrlStore* urls = nullptr;  ///< The disk and all URLs, not watched. Null: only the disk.
  CommonOptions common{};          ///< Filled by parse_command_line, as is `command`.
  TypedCommand command{};
  LaunchFacts launch{};
  /// Details for the document of an error, filled by verbs: a line for each problem.
  std::vector<std::string> error_details{};
  /// The model maps of this run by name, filled by open_map.
  mutable OpenedMaps opened_maps{};
  int ranks_here = 1;        ///< Ranks that share this machine's CPUs.
  int requests_at_once = 1;  ///< LocalDisk::requests_at_once of the disks that are read and written.
};

/// This rank's own disk. Records the files that it opens, if they are to be rechecked.
inline const SourceStore& own_store(const Session& session) {
  if (session.watched != nullptr) return *session.watched;
  return session.fs;
}

/// The store that contains SRC: the disk, or with --local-input the files of all ranks.
inline const SourceStore& source_store(const Session& session) {
  if (session.peer_store != nullptr) return *session.peer_store;
  return own_store(session);
}

/// The store of DST. Its files are not watched for changes.
const SourceStore& destination_store(const Session& session);

/// "rank 1 of 4", for people; empty if this process is alone.
std::string rank_label(const Session& session);
/// The number of worker threads: --threads, or else this rank's share of the available CPUs, or of the requests that
/// hide the round trips of its disks if those are more.
int worker_count(const Session& session);
/// The value of --max-memory. \throws Error kInvalidArgument  not a size.
std::int64_t max_memory_bytes(const Session& session);
/// The memory that a reading verb may use: --max-memory, with --local-input without the part for the store of all
/// ranks' files.
/// \throws Error kInvalidArgument  also if the rest is too small.
std::int64_t reading_memory_bytes(const Session& session);

/// Whether `err` may be coloured: depends on --color, NO_COLOR, TERM=dumb, and whether it is a terminal.
bool colours_errors(const Session& session);

/// Prints a line "shardctl: ..." on stderr, except with --quiet. The file of --log-file receives it in any case, as it
/// does warnings.
void note(const Session& session, const std::string& text);
/// Prints "shardctl: warning: ..." on stderr, except with --quiet.
void warn(const Session& session, const std::string& text);
/// Warns of the first few texts, a line each, and of the number of others.
void warn_all(const Session& session, const std::vector<std::string>& texts);

}  // namespace shard::app

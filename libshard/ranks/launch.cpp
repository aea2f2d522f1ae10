#include "libshard/ranks/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/short_text.h"

namespace shard {

namespace {

constexpr int kFirstPort = 20'000, kPorts = 20'000;  // The range of ports that are derived from a job's number.

Error invalid(const std::string& what) { return Error(ErrorCode::kInvalidArgument, what); }

/// The error for variables that are incomplete or contradict one another.
Error wrong(const std::string& what) { return invalid(what).suggest(Remedy::kIgnoreLauncher); }

/// One launcher's variables, read with its name for messages.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  std::optional<std::string> text(std::string_view name) const {
    std::optional<std::string> value = environment_ ? environment_(name) : std::nullopt;
    return value && value->empty() ? std::nullopt : value;
  }
  bool has(std::string_view name) const { return text(name).has_value(); }
  bool has_any(std::initializer_list<std::string_view> names) const {
    return std::ranges::any_of(names, [&](std::string_view name) { return has(name); });
  }

  /// \throws Error kInvalidArgument  only some of them are set.
  void require_all(std::initializer_list<std::string_view> names) const {
    std::vector<std::string_view> set, missing;
    for (const std::string_view name : names) (has(name) ? set : missing).push_back(name);
    if (missing.empty()) return;
    throw wrong(fmt::format("{} {} set, but not {}", fmt::join(set, ", "), set.size() == 1 ? "is" : "are",
                            fmt::join(missing, ", ")));
  }

  int number(std::string_view name, int least, int most) const {
    const std::string value = text(name).value_or("");
    const std::optional<int> number = parse_number<int>(value);
    if (!number || *number < least || *number > most) {
      throw wrong(fmt::format("{} is '{}'", name, value)).expected(fmt::format("{} to {}", least, most)).found(value);
    }
    return *number;
  }
  int number_or(std::string_view name, int least, int most, int otherwise) const {
    return has(name) ? number(name, least, most) : otherwise;
  }

  void read_rank(Launch& launch, std::string_view rank, std::string_view size) const {
    launch.size = number(size, 1, kMaxWorld);
    launch.rank = number(rank, 0, kMaxWorld);
    if (launch.rank >= launch.size) {
      throw wrong(fmt::format("{}={} contradicts {}={}", rank, launch.rank, size, launch.size));
    }
  }
  void read_local(Launch& launch, std::string_view rank, std::string_view size) const {
    launch.local_size = number_or(size, 1, kMaxWorld, 1);
    launch.local_rank = number_or(rank, 0, kMaxWorld, 0);
    if (has(size) && launch.local_rank >= launch.local_size) {
      throw wrong(fmt::format("{}={} contradicts {}={}", rank, launch.local_rank, size, launch.local_size));
    }
    if (launch.local_size > launch.size) {
      throw wrong(fmt::format("{}={} contradicts a world of {}", size, launch.local_size, launch.size));
    }
  }
  /// Reads MASTER_ADDR and MASTER_PORT, if a user passes them on.
  void read_address(Launch& launch) const {
    if (has_any({"MASTER_ADDR", "MASTER_PORT"})) require_all({"MASTER_ADDR", "MASTER_PORT"});
    launch.address = text("MASTER_ADDR").value_or("");
    launch.port = number_or("MASTER_PORT", 0, 65535, 0);
  }

 private:
  const Environment& environment_;
};

Launch torchrun(const Variables& variables) {
  variables.require_all({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"});
  Launch launch;
  launch.launcher = Launcher::kTorchrun;
  variables.read_rank(launch, "RANK", "WORLD_SIZE");
  variables.read_local(launch, "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  variables.read_address(launch);
  launch.agent_hosts_store = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  // A restarted job may find the same store, with data of the failed ranks in it.
  launch.job = fmt::format("{}/{}", variables.text("TORCHELASTIC_RUN_ID").value_or("none"),
                           variables.text("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  launch.error_file = variables.text("TORCHELASTIC_ERROR_FILE").value_or("");
  return launch;
}

/// The variables of one launcher of MPI. Without one that names the job, the job has the launcher's name.
struct MpiVariables {
  Launcher launcher;
  std::string_view rank, size, local_rank, local_size, job;
};
constexpr std::array<MpiVariables, 3> kMpi{{
    {Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {Launcher::kMvapich, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE", ""},
    {Launcher::kPmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_ID"},
}};
/// \pre `launcher` is in kMpi
const MpiVariables& mpi_variables(Launcher launcher) {
  return *std::ranges::find(kMpi, launcher, &MpiVariables::launcher);
}

/// Checks for variables that were set by hand or remain from a shell, under a launcher of MPI whose variables differ. A
/// torchrun may well be one rank of a different launcher.
void check_set_by_hand(const Variables& variables) {
  if (variables.has("TORCHELASTIC_RUN_ID")) return;
  const std::string rank = *variables.text("RANK"), size = *variables.text("WORLD_SIZE");
  for (const MpiVariables& mpi : kMpi) {
    const auto its_rank = variables.text(mpi.rank), its_size = variables.text(mpi.size);
    if (!its_rank || !its_size || (*its_rank == rank && *its_size == size)) continue;
    throw wrong(fmt::format("RANK={}, WORLD_SIZE={} contradict {}={}, {}={}", rank, size, mpi.rank, *its_rank, mpi.size,
                            *its_size))
        .hint("unset RANK and WORLD_SIZE")
        .suggest(Remedy::kNameLauncher);
  }
}

Launch read_mpi(const Variables& variables, const MpiVariables& mpi) {
  variables.require_all({mpi.rank, mpi.size});
  Launch launch;
  launch.launcher = mpi.launcher;
  variables.read_rank(launch, mpi.rank, mpi.size);
  variables.read_local(launch, mpi.local_rank, mpi.local_size);
  variables.read_address(launch);
  launch.job = variables.text(mpi.job).value_or(std::string(launcher_name(mpi.launcher)));
  if (mpi.launcher != Launcher::kOpenMpi) return launch;
  launch.session_folder = variables.text("OMPI_MCA_orte_jobfam_session_dir").value_or("");
  launch.token = variables.text("OMPI_MCA_orte_precondition_transports").value_or("");  // A random key of the job.
  return launch;
}

/// The tasks on node number `node` in Slurm's "2(x3),1", which means 2, 2, 2, 1. 0 if it is not listed.
int tasks_on_node(std::string_view text, int node) {
  while (!text.empty()) {
    std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const std::optional<int> tasks = take_number<int>(part);
    if (!tasks) return 0;
    int times = 1;
    if (part.starts_with("(x")) {
      part.remove_prefix(2);
      times = take_number<int>(part).value_or(1);
    }
    if (node < times) return *tasks;
    node -= times;
  }
  return 0;
}

Launch slurm(const Variables& variables) {
  const bool has_step_size = variables.has("SLURM_STEP_NUM_TASKS");
  const std::string_view size = has_step_size ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  variables.require_all({"SLURM_STEP_ID", "SLURM_PROCID", size});
  Launch launch;
  launch.launcher = Launcher::kSlurm;
  variables.read_rank(launch, "SLURM_PROCID", size);
  const std::optional<std::string> step_tasks = variables.text("SLURM_STEP_TASKS_PER_NODE");
  const std::string tasks = step_tasks.value_or(variables.text("SLURM_TASKS_PER_NODE").value_or(""));
  const int tasks_here = tasks_on_node(tasks, variables.number_or("SLURM_NODEID", 0, kMaxWorld, 0));
  launch.local_rank = variables.number_or("SLURM_LOCALID", 0, kMaxWorld, 0);
  launch.local_size = std::max(launch.local_rank + 1, tasks_here);
  if (launch.local_rank >= launch.size) {
    throw wrong(fmt::format("SLURM_LOCALID={} contradicts {}={}", launch.local_rank, size, launch.size));
  }
  // The tasks of the whole job, or of an unknown node, may be those of other steps.
  const bool is_known = step_tasks && variables.has("SLURM_NODEID") && tasks_here > 0;
  if (is_known && launch.local_rank >= tasks_here) {
    throw wrong(fmt::format("SLURM_LOCALID={} contradicts SLURM_STEP_TASKS_PER_NODE={}", launch.local_rank, tasks));
  }
  if (is_known && tasks_here > launch.size) {
    throw wrong(fmt::format("SLURM_STEP_TASKS_PER_NODE={} contradicts {}={}", tasks, size, launch.size));
  }
  const std::string job = variables.text("SLURM_JOB_ID").value_or("0");
  launch.job = fmt::format("{}.{}", job, variables.text("SLURM_STEP_ID").value_or("0"));
  variables.read_address(launch);
  if (!launch.address.empty() || launch.is_on_one_host()) return launch;  // On one host, ranks meet through a file.
  launch.address = first_host(variables.text("SLURM_STEP_NODELIST").value_or("localhost"));
  const std::size_t mixed = std::hash<std::string>{}(launch.job);
  launch.port = kFirstPort + static_cast<int>(mixed % kPorts);
  return launch;
}

/// The launchers that set variables, in the order in which they are looked for.
constexpr std::array kLaunchers{Launcher::kTorchrun, Launcher::kOpenMpi, Launcher::kMvapich, Launcher::kPmi,
                                Launcher::kSlurm};

bool is_set(const Variables& variables, Launcher launcher) {
  if (launcher == Launcher::kTorchrun) return variables.has_any({"RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"});
  if (launcher == Launcher::kSlurm) {
    const std::string tasks = variables.text("SLURM_NTASKS").value_or("1");
    return variables.has("SLURM_STEP_ID") && variables.text("SLURM_STEP_NUM_TASKS").value_or(tasks) != "1";
  }
  const MpiVariables& mpi = mpi_variables(launcher);
  return variables.has_any({mpi.rank, mpi.size});
}

Launch read_launch(const Variables& variables, Launcher launcher) {
  if (launcher == Launcher::kTorchrun) return torchrun(variables);
  return launcher == Launcher::kSlurm ? slurm(variables) : read_mpi(variables, mpi_variables(launcher));
}

Launch by_hand(const LaunchOptions& options) {
  if (!options.rank || !options.world_size)
    throw invalid("rank and world size must be given together").suggest(Remedy::kNameRank);
  Launch launch;
  launch.launcher = Launcher::kManual;
  launch.rank = *options.rank;
  launch.size = *options.world_size;
  if (launch.size < 1 || launch.size > kMaxWorld || launch.rank < 0 || launch.rank >= launch.size) {
    throw invalid(fmt::format("rank {} of {} does not exist", launch.rank, plural(launch.size, "rank")));
  }
  if (launch.size > 1 && options.rdzv.empty()) {
    throw invalid(fmt::format("{} ranks cannot connect: no rendezvous address was given", launch.size))
        .suggest(Remedy::kNameRendezvous);
  }
  launch.job = "manual";
  return launch;
}

/// Parses "HOST:PORT" or "[::1]:PORT".
void use_rdzv(Launch& launch, const std::string& rdzv) {
  const std::size_t colon = rdzv.rfind(':');
  const std::string_view digits =
      colon == std::string::npos ? std::string_view() : std::string_view(rdzv).substr(colon + 1);
  const int port = parse_number<int>(digits).value_or(0);
  if (colon == std::string::npos || colon == 0 || port < 1 || port > 65535) {
    throw invalid(fmt::format("rendezvous '{}' is not HOST:PORT", rdzv)).expected("HOST:PORT").found(rdzv);
  }
  launch.address = rdzv.substr(0, colon);
  if (launch.address.starts_with('[') && launch.address.ends_with(']')) {
    launch.address = launch.address.substr(1, launch.address.size() - 2);
  }
  launch.port = port;
  launch.agent_hosts_store = false;
}

Launch find(const LaunchOptions& options, const Variables& variables) {
  if (options.rank || options.world_size) return by_hand(options);
  if (options.launcher == "none") return {};
  if (options.launcher != "auto") {
    const auto* launcher = std::ranges::find(kLaunchers, options.launcher, launcher_name);
    if (launcher == kLaunchers.end()) throw wrong(fmt::format("unknown launcher '{}'", options.launcher));
    if (is_set(variables, *launcher)) return read_launch(variables, *launcher);
    throw wrong(fmt::format("launcher {} was requested, but its environment variables are not set", options.launcher));
  }
  for (const Launcher launcher : kLaunchers) {
    if (!is_set(variables, launcher)) continue;
    const Launch launch = read_launch(variables, launcher);
    if (launcher == Launcher::kTorchrun) check_set_by_hand(variables);
    return launch;
  }
  if (variables.has("PMIX_RANK")) {
    throw wrong("PMIX_RANK is set, but no variable gives the number of ranks").suggest(Remedy::kNameRank, "$PMIX_RANK");
  }
  return {};
}

}  // namespace

std::string_view launcher_name(Launcher launcher) {
  constexpr std::array<std::string_view, 7> kNames{"none", "manual", "torchrun", "ompi", "mvapich", "pmi", "slurm"};
  return kNames[static_cast<std::size_t>(launcher)];
}

std::string first_host(std::string_view node_list) {
  const std::size_t bracket = node_list.find('['), comma = node_list.find(',');
  if (bracket == std::string_view::npos || comma < bracket) return std::string(node_list.substr(0, comma));
  const std::string_view inside = node_list.substr(bracket + 1);
  const std::size_t end = inside.find_first_of(",-]");
  if (end == 0 || end == std::string_view::npos) throw wrong(fmt::format("'{}' is not a list of nodes", node_list));
  return fmt::format("{}{}", node_list.substr(0, bracket), inside.substr(0, end));
}

Environment process_environment() {
  return [](std::string_view name) {
    const char* const value = std::getenv(std::string(name).c_str());
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  };
}

Launch detect_launch(const LaunchOptions& options, const Environment& environment) {
  Launch launch = find(options, Variables(environment));
  if (options.rdzv.empty()) return launch;
  if (launch.launcher == Launcher::kNone) {
    throw invalid("a rendezvous address was given, but no launcher started this process")
        .hint("start it with torchrun, mpirun or srun")
        .suggest(Remedy::kNameRank);
  }
  use_rdzv(launch, options.rdzv);
  return launch;
}

}  // namespace shard

/// \file Launch: the launcher of this process, its rank and the number of ranks. Pure: reads variables through a
///   function that it receives.
///
/// Exactly one launcher's variables are used. Sets are never mixed. Order: explicit rank and size, the explicit
/// launcher, torchrun, Open MPI, MVAPICH2, PMI (MPICH, Intel MPI), Slurm's srun, none. Slurm counts only inside a step
/// (SLURM_STEP_ID), because batch shells have its other variables too. docs/ranks.md lists the variables.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace shard {

inline constexpr int kMaxWorld = 1 << 20;

enum class Launcher : std::uint8_t { kNone, kManual, kTorchrun, kOpenMpi, kMvapich, kPmi, kSlurm };
/// "none", "manual", "torchrun", "ompi", "mvapich", "pmi", "slurm".
std::string_view launcher_name(Launcher launcher);

struct Launch {
  Launcher launcher = Launcher::kNone;
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  ///< The rank and number of ranks on this host, if the launcher provides them.
  std::string address;                 ///< The host of the rendezvous. Empty if rank 0 must publish one.
  int port = 0;                        ///< 0: rank 0 chooses it.
  bool agent_hosts_store = false;      ///< torchrun: the agent already listens, so all ranks are clients.
  std::string job;                     ///< Differs between jobs and between restarts of one job.
  std::string token;                   ///< A secret that the launcher gave only to the job's ranks, or empty.
  std::string session_folder;          ///< Open MPI's folder of this job on this host, or empty.
  std::string error_file;              ///< A file whose content torchrun shows as the error, or empty.

  bool operator==(const Launch&) const = default;

  bool is_on_one_host() const { return local_size >= size; }  ///< Judged by the launcher's numbers.
};

struct LaunchOptions {
  std::string launcher = "auto";  ///< One of auto, none, torchrun, ompi, mvapich, pmi, slurm.
  std::optional<int> rank{}, world_size{};
  std::string rdzv{};  ///< HOST:PORT, for any launcher.
};

using Environment = std::function<std::optional<std::string>(std::string_view name)>;
/// This process's variables. Threads: any, while no thread changes them.
Environment process_environment();

/// \throws Error kInvalidArgument  a set that is incomplete or contradicts itself, a value that is not a number, a
///   requested launcher whose variables are not set, or `rdzv` without a launcher; the message names the variables.
Launch detect_launch(const LaunchOptions& options, const Environment& environment);

/// The first host of a Slurm node list: "n01" of "n[01-04,7],m2". \throws Error kInvalidArgument
std::string first_host(std::string_view node_list);

}  // namespace shard

#include "libshard/ranks/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "libshard/core/error.h"

namespace shard {
namespace {

using ::testing::HasSubstr;
using Set = std::map<std::string, std::string, std::less<>>;

Launch detect(const Set& set, const LaunchOptions& options = {}) {
  return detect_launch(options, [&](std::string_view name) -> std::optional<std::string> {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal(const Set& set, const LaunchOptions& options = {}) {
  try {
    detect(set, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

const Set kTorchrun{{"RANK", "3"},
                    {"WORLD_SIZE", "8"},
                    {"LOCAL_RANK", "1"},
                    {"LOCAL_WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "node7"},
                    {"MASTER_PORT", "29500"},
                    {"TORCHELASTIC_RUN_ID", "job7"},
                    {"TORCHELASTIC_RESTART_COUNT", "2"},
                    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                    {"TORCHELASTIC_ERROR_FILE", "/e/error.json"},
                    {"OMP_NUM_THREADS", "1"}};
const Set kOmpi{{"OMPI_COMM_WORLD_RANK", "1"},
                {"OMPI_COMM_WORLD_SIZE", "4"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                {"PMIX_NAMESPACE", "77.1"},
                {"PMIX_RANK", "1"},
                {"OMPI_MCA_orte_jobfam_session_dir", "/s/77"}};
const Set kSlurm{{"SLURM_STEP_ID", "5"},
                 {"SLURM_JOB_ID", "99"},
                 {"SLURM_PROCID", "6"},
                 {"SLURM_STEP_NUM_TASKS", "7"},
                 {"SLURM_NTASKS", "16"},
                 {"SLURM_LOCALID", "0"},
                 {"SLURM_NODEID", "3"},
                 {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                 {"SLURM_STEP_NODELIST", "gpu[01-04]"}};

Set joined(Set a, const Set& b) {
  a.insert(b.begin(), b.end());
  return a;
}
Set without(Set set, const std::string& name) {
  set.erase(name);
  return set;
}
Set with(Set set, const std::string& name, const std::string& value) {
  set[name] = value;
  return set;
}

TEST(DetectLaunch, NothingSetIsOneProcess) {
  const Launch launch = detect({});
  EXPECT_EQ(launch.launcher, Launcher::kNone);
  EXPECT_EQ(launch.size, 1);
}

TEST(DetectLaunch, ReadsTorchrun) {
  const Launch launch = detect(kTorchrun);
  EXPECT_EQ(launch.launcher, Launcher::kTorchrun);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 2);
  EXPECT_EQ(launch.address, "node7");
  EXPECT_EQ(launch.port, 29500);
  EXPECT_TRUE(launch.agent_hosts_store);
  EXPECT_EQ(launch.job, "job7/2");
  EXPECT_EQ(launch.error_file, "/e/error.json");
}

TEST(DetectLaunch, RankZeroHostsUnlessTheAgentSaysTrue) {
  EXPECT_FALSE(detect(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "False")).agent_hosts_store);
  EXPECT_FALSE(detect(without(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE")).agent_hosts_store);
}

TEST(DetectLaunch, ReadsOpenMpi) {
  const Launch launch = detect(kOmpi);
  EXPECT_EQ(launch.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.size, 4);
  EXPECT_EQ(launch.local_size, 2);
  EXPECT_EQ(launch.session_folder, "/s/77");
  EXPECT_EQ(launch.job, "77.1");
  EXPECT_EQ(launch.address, "");
}

TEST(DetectLaunch, ReadsMvapichAndPmi) {
  const Launch mvapich = detect({{"MV2_COMM_WORLD_RANK", "2"},
                                 {"MV2_COMM_WORLD_SIZE", "3"},
                                 {"MV2_COMM_WORLD_LOCAL_RANK", "0"},
                                 {"MV2_COMM_WORLD_LOCAL_SIZE", "1"}});
  EXPECT_EQ(mvapich.launcher, Launcher::kMvapich);
  EXPECT_EQ(mvapich.rank, 2);
  const Launch pmi = detect({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(pmi.launcher, Launcher::kPmi);
  EXPECT_EQ(pmi.local_rank, 1);
}

TEST(DetectLaunch, ReadsASlurmStep) {
  const Launch launch = detect(kSlurm);
  EXPECT_EQ(launch.launcher, Launcher::kSlurm);
  EXPECT_EQ(launch.rank, 6);
  EXPECT_EQ(launch.size, 7);
  EXPECT_EQ(launch.local_size, 1);
  EXPECT_EQ(launch.address, "gpu01");
  EXPECT_GE(launch.port, 20000);
  EXPECT_EQ(launch.job, "99.5");
  EXPECT_EQ(detect(with(with(kSlurm, "SLURM_NODEID", "2"), "SLURM_LOCALID", "1")).local_size, 2);
}

TEST(DetectLaunch, ABatchShellOfSlurmIsOneProcess) {
  EXPECT_EQ(detect(without(kSlurm, "SLURM_STEP_ID")).launcher, Launcher::kNone);
  EXPECT_EQ(detect(with(kSlurm, "SLURM_STEP_NUM_TASKS", "1")).launcher, Launcher::kNone);
}

TEST(DetectLaunch, TorchrunComesBeforeOpenMpiAndThatBeforeSlurm) {
  EXPECT_EQ(detect(joined(kTorchrun, joined(kOmpi, kSlurm))).launcher, Launcher::kTorchrun);
  EXPECT_EQ(detect(joined(kOmpi, kSlurm)).launcher, Launcher::kOpenMpi);
}

TEST(DetectLaunch, MasterAddressMayBePassedThroughOtherLaunchers) {
  const Launch launch = detect(with(with(kOmpi, "MASTER_ADDR", "n1"), "MASTER_PORT", "4000"));
  EXPECT_EQ(launch.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(launch.address, "n1");
  EXPECT_EQ(launch.port, 4000);
}

TEST(DetectLaunch, OptionsGoBeforeVariables) {
  LaunchOptions options;
  options.launcher = "none";
  EXPECT_EQ(detect(kTorchrun, options).size, 1);
  options.launcher = "slurm";
  EXPECT_EQ(detect(joined(kTorchrun, kSlurm), options).launcher, Launcher::kSlurm);
  const Launch manual = detect(kTorchrun, {.rank = 1, .world_size = 2, .rdzv = "host:99"});
  EXPECT_EQ(manual.launcher, Launcher::kManual);
  EXPECT_EQ(manual.address, "host");
  EXPECT_EQ(manual.port, 99);
  EXPECT_EQ(detect(kOmpi, {.rdzv = "[::1]:99"}).address, "::1");
}

TEST(DetectLaunch, NamesWhatIsIncomplete) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THAT(refusal(without(kTorchrun, name)), HasSubstr(name));
  }
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
            "RANK, WORLD_SIZE are set, but not MASTER_ADDR, MASTER_PORT");
  EXPECT_THAT(refusal(without(kOmpi, "OMPI_COMM_WORLD_SIZE")), HasSubstr("OMPI_COMM_WORLD_SIZE"));
  EXPECT_THAT(refusal({{"PMI_RANK", "0"}}), HasSubstr("PMI_SIZE"));
  EXPECT_THAT(refusal({{"PMIX_RANK", "0"}}), HasSubstr("PMIX_RANK"));
  EXPECT_THAT(refusal(without(kSlurm, "SLURM_PROCID")), HasSubstr("SLURM_PROCID"));
  EXPECT_THAT(refusal({}, {.rank = 1}), HasSubstr("rank and world size must be given together"));
  EXPECT_THAT(refusal({}, {.rank = 0, .world_size = 2}), HasSubstr("no rendezvous address was given"));
}

TEST(DetectLaunch, NamesAnAddressWithoutAPort) {
  EXPECT_EQ(refusal(with(kOmpi, "MASTER_ADDR", "n1")), "MASTER_ADDR is set, but not MASTER_PORT");
  EXPECT_EQ(refusal(with(kSlurm, "MASTER_PORT", "4000")), "MASTER_PORT is set, but not MASTER_ADDR");
}

TEST(DetectLaunch, RefusesVariablesLeftInAShellUnderMpi) {
  const Set left{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}};
  EXPECT_EQ(refusal(joined(left, kOmpi)),
            "RANK=0, WORLD_SIZE=1 contradict OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=4");
  EXPECT_THAT(refusal(joined(left, {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}})), HasSubstr("PMI_SIZE=2"));
  EXPECT_EQ(detect(joined(left, kOmpi), {.launcher = "ompi"}).size, 4);
  EXPECT_EQ(detect(joined(left, kSlurm)).size, 1);  // srun may start a launcher that sets them.
}

TEST(DetectLaunch, TakesVariablesSetByHandFromThoseOfMpi) {
  const Set same{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}};
  EXPECT_EQ(detect(joined(same, kOmpi)).launcher, Launcher::kTorchrun);
}

TEST(DetectLaunch, NamesWhatContradicts) {
  EXPECT_THAT(refusal(with(kTorchrun, "LOCAL_WORLD_SIZE", "9")), HasSubstr("LOCAL_WORLD_SIZE=9"));
  EXPECT_THAT(refusal(with(kTorchrun, "RANK", "8")), HasSubstr("RANK=8 contradicts WORLD_SIZE=8"));
  EXPECT_THAT(refusal(with(kTorchrun, "LOCAL_RANK", "2")), HasSubstr("LOCAL_RANK=2"));
  EXPECT_THAT(refusal(with(kTorchrun, "WORLD_SIZE", "many")), HasSubstr("WORLD_SIZE is 'many'"));
  EXPECT_THAT(refusal(with(kTorchrun, "RANK", "-1")), HasSubstr("RANK is '-1'"));
  EXPECT_THAT(refusal(with(kTorchrun, "MASTER_PORT", "70000")), HasSubstr("MASTER_PORT"));
  EXPECT_THAT(refusal({}, {.rank = 2, .world_size = 2, .rdzv = "h:1"}), HasSubstr("rank 2 of 2 ranks does not exist"));
  EXPECT_THAT(refusal(kOmpi, {.rdzv = "nowhere"}), HasSubstr("HOST:PORT"));
  EXPECT_THAT(refusal({}, {.rdzv = "host:99"}), HasSubstr("no launcher started this process"));
  EXPECT_THAT(refusal(kOmpi, {.launcher = "slurm"}), HasSubstr("launcher slurm was requested"));
}

TEST(DetectLaunch, NamesLocalNumbersOfSlurmThatContradictTheStep) {
  const Set two{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}};
  EXPECT_EQ(refusal(with(two, "SLURM_LOCALID", "5")), "SLURM_LOCALID=5 contradicts SLURM_NTASKS=2");
  EXPECT_EQ(refusal(with(kSlurm, "SLURM_LOCALID", "1")),
            "SLURM_LOCALID=1 contradicts SLURM_STEP_TASKS_PER_NODE=2(x3),1");
  EXPECT_EQ(refusal(with(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "9"), "SLURM_NODEID", "0")),
            "SLURM_STEP_TASKS_PER_NODE=9 contradicts SLURM_STEP_NUM_TASKS=7");
  EXPECT_EQ(detect(with(with(two, "SLURM_LOCALID", "1"), "SLURM_TASKS_PER_NODE", "1")).local_size, 2)
      << "the job's tasks are not the step's";
}

TEST(FirstHost, ExpandsSlurmsRanges) {
  EXPECT_EQ(first_host("n1"), "n1");
  EXPECT_EQ(first_host("n1,n2"), "n1");
  EXPECT_EQ(first_host("gpu[001-064,070],cpu3"), "gpu001");
  EXPECT_EQ(first_host("a[7]"), "a7");
  EXPECT_EQ(first_host("n1,m[2-3]"), "n1");
}

}  // namespace
}  // namespace shard

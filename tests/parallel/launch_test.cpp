#include "hrm/parallel/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "hrm/base/error.h"

namespace hrm::parallel {
namespace {

using Map = std::map<std::string, std::string>;

Launch launch_in(const Map& variables) {
  return detect_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Map with(Map variables, const Map& more) {
  for (const auto& [name, value] : more) {
    if (value.empty()) {
      variables.erase(name);
    } else {
      variables[name] = value;
    }
  }
  return variables;
}

template <class Call>
void expect_refused(const Call& call, const std::vector<std::string>& parts) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << parts[0];
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::environment);
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what() << "\nlacks: " << part;
    }
  }
}

void expect_place(const Launch& launch, Launcher launcher, const std::vector<int>& place, const std::string& host) {
  EXPECT_EQ(launch.launcher, launcher);
  EXPECT_EQ(
      (std::vector<int>{launch.rank, launch.ranks, launch.local_rank, launch.local_ranks, launch.node, launch.nodes}),
      place);
  EXPECT_EQ(launch.host, host);
}

// As they were seen in a process started by each.
const Map kTorchrun = {{"RANK", "5"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "4"},
                       {"GROUP_RANK", "1"},
                       {"GROUP_WORLD_SIZE", "2"},
                       {"ROLE_RANK", "5"},
                       {"MASTER_ADDR", "node07"},
                       {"MASTER_PORT", "29500"},
                       {"TORCHELASTIC_RUN_ID", "none"},
                       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                       {"TORCHELASTIC_RESTART_COUNT", "2"},
                       {"TORCHELASTIC_MAX_RESTARTS", "3"}};
const Map kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                      {"PMIX_NAMESPACE", "1234567"},       {"PMIX_RANK", "1"}};
const Map kSlurm = {{"SLURM_JOB_ID", "4711"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_PROCID", "4"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_NODEID", "1"},
                    {"SLURM_NTASKS", "6"},
                    {"SLURM_NNODES", "2"},
                    {"SLURM_STEP_NUM_TASKS", "6"},
                    {"SLURM_STEP_NUM_NODES", "2"},
                    {"SLURM_STEP_TASKS_PER_NODE", "4,2"},
                    {"SLURM_STEP_NODELIST", "gpu[03,07]"},
                    {"SLURM_JOB_NODELIST", "gpu[03,07]"},
                    {"SLURM_RESTART_COUNT", "1"}};
const Map kPmi = {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}};
const Map kPlain = {
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29511"}};

TEST(Launch, None) {
  const Launch launch = launch_in({});
  expect_place(launch, Launcher::none, {0, 1, 0, 1, 0, 1}, "127.0.0.1");
  EXPECT_EQ(describe(launch), "one process, no launcher");
  EXPECT_EQ(launch_in({{"WORLD_SIZE", "1"}}).launcher, Launcher::none);
  EXPECT_EQ(launch_in({{"RANK", ""}, {"MASTER_ADDR", "node07"}}).launcher, Launcher::none);
}

TEST(Launch, Torchrun) {
  const Launch launch = launch_in(kTorchrun);
  expect_place(launch, Launcher::torchrun, {5, 8, 1, 4, 1, 2}, "node07");
  EXPECT_EQ(launch.port, 29500);
  EXPECT_TRUE(launch.agent_store);
  EXPECT_EQ(launch.attempt, "2");
  EXPECT_EQ(describe(launch), "rank 5 of 8 by torchrun: 1 of 4 on node 1 of 2, meeting at node07:29500, attempt 2");
  EXPECT_FALSE(launch_in(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).agent_store);
}

TEST(Launch, OpenMpi) {
  const Launch launch = launch_in(kOpenMpi);
  expect_place(launch, Launcher::open_mpi, {1, 4, 1, 4, 0, 1}, "127.0.0.1");
  for (int job = 0; job < 200; ++job) {
    const int port = launch_in(with(kOpenMpi, {{"PMIX_NAMESPACE", std::to_string(job)}})).port;
    EXPECT_GE(port, 20000) << job;
    EXPECT_LT(port, 32768) << job << ": connections have those from here on";
  }
  EXPECT_EQ(launch_in(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "3"}})).port, launch.port) << "all ranks have one port";
  EXPECT_NE(launch_in(with(kOpenMpi, {{"PMIX_NAMESPACE", "1234568"}})).port, launch.port) << "another job, another";
  const Map nodes = with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "3"}});
  expect_refused([&] { launch_in(nodes); }, {"MASTER_ADDR", "mpirun -x"});
  const Launch far = launch_in(with(nodes, {{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "1234"}}));
  expect_place(far, Launcher::open_mpi, {3, 4, 1, 2, 1, 2}, "n1");
  EXPECT_EQ(far.port, 1234);
}

TEST(Launch, Slurm) {
  const Launch launch = launch_in(kSlurm);
  expect_place(launch, Launcher::slurm, {4, 6, 0, 2, 1, 2}, "gpu03");
  EXPECT_EQ(launch.attempt, "1");
  EXPECT_EQ(launch_in(with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}})).port, launch.port);
  EXPECT_NE(launch_in(with(kSlurm, {{"SLURM_STEP_ID", "1"}})).port, launch.port);
  EXPECT_EQ(launch_in(with(kSlurm, {{"MASTER_PORT", "29500"}})).port, 29500);
  // Older versions have the job's variables alone.
  const Launch old = launch_in(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", ""},
                                             {"SLURM_STEP_NUM_NODES", ""},
                                             {"SLURM_STEP_TASKS_PER_NODE", ""},
                                             {"SLURM_STEP_NODELIST", ""},
                                             {"SLURM_TASKS_PER_NODE", "3(x2)"},
                                             {"SLURM_RESTART_COUNT", ""}}));
  expect_place(old, Launcher::slurm, {4, 6, 0, 3, 1, 2}, "gpu03");
  EXPECT_EQ(old.attempt, "0");
}

TEST(Launch, InsideAnAllocationIsNoRank) {
  EXPECT_EQ(launch_in(with(kSlurm, {{"SLURM_STEP_ID", ""}})).launcher, Launcher::none) << "a batch script";
  EXPECT_EQ(launch_in(with(kSlurm, {{"SLURM_STEP_ID", "4294967290"}})).launcher, Launcher::none) << "salloc's shell";
}

TEST(Launch, TheInnermostCounts) {
  EXPECT_EQ(launch_in(with(kSlurm, kTorchrun)).launcher, Launcher::torchrun);
  EXPECT_EQ(launch_in(with(kSlurm, kOpenMpi)).launcher, Launcher::open_mpi);
  EXPECT_EQ(launch_in(with(kSlurm, kPmi)).launcher, Launcher::slurm) << "srun brings PMI's variables, too";
}

TEST(Launch, Pmi) {
  expect_place(launch_in(kPmi), Launcher::pmi, {3, 4, 3, 4, 0, 1}, "127.0.0.1");
  const Map nodes = with(kPmi, {{"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  expect_refused([&] { launch_in(nodes); }, {"MASTER_ADDR"});
  expect_place(launch_in(with(nodes, {{"MASTER_ADDR", "n1"}})), Launcher::pmi, {3, 4, 1, 2, 1, 2}, "n1");
}

TEST(Launch, PlainEnvironment) {
  expect_place(launch_in(kPlain), Launcher::environment, {1, 2, 1, 2, 0, 1}, "127.0.0.1");
  expect_place(launch_in(with(kPlain, {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}})),
               Launcher::environment, {3, 4, 1, 2, 1, 2}, "127.0.0.1");
  expect_place(launch_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), Launcher::environment, {0, 1, 0, 1, 0, 1}, "127.0.0.1");
}

TEST(Launch, IncompleteOrContradictory) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    expect_refused([&] { launch_in(with(kTorchrun, {{name, ""}})); }, {name, "not set", "torchrun"});
  }
  for (const char* name : {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID"}) {
    expect_refused([&] { launch_in(with(kSlurm, {{name, ""}})); }, {name, "not set", "srun"});
  }
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    expect_refused([&] { launch_in(with(kPlain, {{name, ""}})); }, {name, "not set"});
  }
  expect_refused([&] { launch_in(with(kTorchrun, {{"RANK", "8"}})); }, {"RANK = 8", "WORLD_SIZE = 8"});
  expect_refused([&] { launch_in(with(kTorchrun, {{"RANK", "-1"}})); }, {"RANK", "'-1'"});
  expect_refused([&] { launch_in(with(kTorchrun, {{"WORLD_SIZE", "0"}})); }, {"WORLD_SIZE", "'0'"});
  expect_refused([&] { launch_in(with(kTorchrun, {{"MASTER_PORT", "70000"}})); }, {"MASTER_PORT", "'70000'"});
  expect_refused([&] { launch_in(with(kTorchrun, {{"LOCAL_RANK", "1x"}})); }, {"LOCAL_RANK", "'1x'"});
  expect_refused([&] { launch_in(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4,1"}})); }, {"'4,1'", "= 6"});
  expect_refused([&] { launch_in(with(kSlurm, {{"SLURM_LOCALID", "2"}})); }, {"SLURM_LOCALID", "'2'"});
  expect_refused([&] { launch_in(with(kSlurm, {{"SLURM_STEP_ID", "x"}, {"SLURM_PROCID", ""}})); }, {"SLURM_PROCID"});
  expect_refused(
      [&] {
        launch_in(with(kSlurm, {{"SLURM_STEP_NODELIST", "gpu[03"}}));
      },
      {"nodes 'gpu[03'", "not closed"});
  expect_refused([&] { launch_in(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4(x"}})); }, {"tasks per node '4(x'"});
  expect_refused([&] { launch_in(with(kSlurm, {{"RANK", "3"}})); }, {"RANK = 3", "says 4"});
  expect_refused([&] { launch_in(with(kOpenMpi, {{"WORLD_SIZE", "2"}})); }, {"WORLD_SIZE = 2", "says 4"});
}

}  // namespace
}  // namespace hrm::parallel

#include "hrm/parallel/launch.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <optional>

#include "hrm/base/error.h"
#include "hrm/base/hash.h"
#include "hrm/base/text.h"
#include "hrm/formats/host_list.h"

namespace hrm::parallel {
namespace {

constexpr int kMostRanks = 1 << 20;
// Up to where Linux gives ports to connections (net.ipv4.ip_local_port_range), one of which could have it.
constexpr int kFirstPort = 20000, kPorts = 32768 - kFirstPort;

// Slurm numbers steps that srun did not start (interactive, batch script, extern, pending) from here on.
constexpr uint64_t kFirstSpecialStep = 0xfffffffa;

// The variables of one launcher.
class Variables {
 public:
  Variables(const Environment& environment, Launcher launcher) : environment_(environment), launcher_(launcher) {}

  std::optional<std::string> find(const char* name) const {
    const char* const value = environment_(name);
    if (value == nullptr || *value == '\0') return {};
    return value;
  }

  bool has(const char* name) const { return find(name).has_value(); }

  std::string text(const char* name) const {
    const auto value = find(name);
    require(value.has_value(), ExitCode::environment, name, " is not set, though other variables of ",
            launcher_name(launcher_), " are; pass all of them on, or unset them");
    return *value;
  }

  int number(const char* name, int least, int most) const {
    const std::string value = text(name);
    const auto parsed = whole_number(value);
    require(parsed && *parsed >= static_cast<uint64_t>(least) && *parsed <= static_cast<uint64_t>(most),
            ExitCode::environment, name, " = '", printable(value), "' is not a whole number from ", least, " to ", most,
            "; correct or unset the variables of ", launcher_name(launcher_));
    return static_cast<int>(*parsed);
  }

  int number_or(const char* name, int fallback, int least, int most) const {
    return has(name) ? number(name, least, most) : fallback;
  }

  // Of `count` ranks or nodes.
  void read_place(const char* index_name, const char* count_name, int& index, int& count) const {
    count = number(count_name, 1, kMostRanks);
    index = number(index_name, 0, kMostRanks);
    require(index < count, ExitCode::environment, index_name, " = ", index, " does not fit ", count_name, " = ", count,
            "; ranks count from 0");
  }

 private:
  const Environment& environment_;
  Launcher launcher_;
};

int port_for(const std::string& job) {
  Hasher hasher;
  hasher.update(job);
  return kFirstPort + static_cast<int>(std::stoul(hasher.hex().substr(0, 8), nullptr, 16) % kPorts);
}

// MASTER_ADDR and MASTER_PORT, where they are set.
void read_rendezvous_address(const Variables& variables, Launch& launch) {
  launch.host = variables.find("MASTER_ADDR").value_or(launch.host);
  launch.port = variables.number_or("MASTER_PORT", launch.port, 1, 65535);
}

Launch from_torchrun(const Variables& variables) {
  Launch launch;
  variables.read_place("RANK", "WORLD_SIZE", launch.rank, launch.ranks);
  variables.read_place("LOCAL_RANK", "LOCAL_WORLD_SIZE", launch.local_rank, launch.local_ranks);
  variables.read_place("GROUP_RANK", "GROUP_WORLD_SIZE", launch.node, launch.nodes);
  launch.host = variables.text("MASTER_ADDR");
  launch.port = variables.number("MASTER_PORT", 1, 65535);
  launch.agent_store = variables.find("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  launch.attempt = variables.find("TORCHELASTIC_RESTART_COUNT").value_or("0");
  launch.job = variables.text("TORCHELASTIC_RUN_ID");
  return launch;
}

Launch from_open_mpi(const Variables& variables) {
  Launch launch;
  variables.read_place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", launch.rank, launch.ranks);
  variables.read_place("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", launch.local_rank,
                       launch.local_ranks);
  // It does not say how many nodes there are: taken to be alike, and filled one after the other.
  launch.nodes = (launch.ranks + launch.local_ranks - 1) / launch.local_ranks;
  launch.node = std::min(launch.rank / launch.local_ranks, launch.nodes - 1);
  launch.job = variables.find("PMIX_NAMESPACE").value_or("");
  launch.port = port_for(launch.job.empty() ? "mpirun" : launch.job);
  read_rendezvous_address(variables, launch);
  require(launch.local_ranks == launch.ranks || variables.has("MASTER_ADDR"), ExitCode::environment, "mpirun started ",
          launch.ranks, " processes, ", launch.local_ranks,
          " of them on this node, but MASTER_ADDR does not say where they meet; start them by mpirun -x "
          "MASTER_ADDR=<the first node> -x MASTER_PORT=29500");
  return launch;
}

Launch from_slurm(const Variables& variables) {
  Launch launch;
  const char* const tasks = variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  variables.read_place("SLURM_PROCID", tasks, launch.rank, launch.ranks);
  const char* const nodes = variables.has("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
  variables.read_place("SLURM_NODEID", nodes, launch.node, launch.nodes);
  const char* const per_node =
      variables.has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  const std::vector<int> counts = expand_counts(variables.text(per_node));
  require(static_cast<int>(counts.size()) == launch.nodes &&
              std::accumulate(counts.begin(), counts.end(), int64_t{0}) == launch.ranks,
          ExitCode::environment, per_node, " = '", printable(variables.text(per_node)), "' does not fit ", nodes, " = ",
          launch.nodes, " and ", tasks, " = ", launch.ranks, "; start the ranks by srun");
  launch.local_ranks = counts[static_cast<size_t>(launch.node)];
  launch.local_rank = variables.number("SLURM_LOCALID", 0, launch.local_ranks - 1);
  launch.attempt = variables.find("SLURM_RESTART_COUNT").value_or("0");
  const char* const list = variables.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  launch.host = expand_hostlist(variables.text(list)).front();
  launch.job = cat(variables.text("SLURM_JOB_ID"), ".", variables.text("SLURM_STEP_ID"));
  launch.port = port_for(launch.job);
  read_rendezvous_address(variables, launch);
  return launch;
}

Launch from_pmi(const Variables& variables) {
  Launch launch;
  variables.read_place("PMI_RANK", "PMI_SIZE", launch.rank, launch.ranks);
  launch.local_rank = launch.rank;
  launch.local_ranks = launch.ranks;
  if (variables.has("MPI_LOCALNRANKS")) {
    variables.read_place("MPI_LOCALRANKID", "MPI_LOCALNRANKS", launch.local_rank, launch.local_ranks);
    launch.nodes = (launch.ranks + launch.local_ranks - 1) / launch.local_ranks;
    launch.node = std::min(launch.rank / launch.local_ranks, launch.nodes - 1);
  }
  launch.job = variables.find("PMI_JOBID").value_or("");
  launch.port = port_for(launch.job.empty() ? "mpirun" : launch.job);
  read_rendezvous_address(variables, launch);
  require(launch.nodes == 1 || variables.has("MASTER_ADDR"), ExitCode::environment, "mpirun started ", launch.ranks,
          " processes, ", launch.local_ranks,
          " of them on this node, but MASTER_ADDR does not say where they meet; set it to the first node, and "
          "MASTER_PORT to a free port");
  return launch;
}

Launch from_plain(const Variables& variables) {
  Launch launch;
  variables.read_place("RANK", "WORLD_SIZE", launch.rank, launch.ranks);
  if (launch.ranks == 1) {
    read_rendezvous_address(variables, launch);
    return launch;
  }
  launch.host = variables.text("MASTER_ADDR");
  launch.port = variables.number("MASTER_PORT", 1, 65535);
  launch.local_ranks = variables.number_or("LOCAL_WORLD_SIZE", launch.ranks, 1, launch.ranks);
  launch.local_rank = variables.number("LOCAL_RANK", 0, launch.local_ranks - 1);
  launch.nodes = (launch.ranks + launch.local_ranks - 1) / launch.local_ranks;
  launch.node = std::min(launch.rank / launch.local_ranks, launch.nodes - 1);
  return launch;
}

bool is_slurm_task(const Variables& variables) {
  const auto step = variables.find("SLURM_STEP_ID");
  if (!step) return false;
  const auto number = whole_number(*step);
  return !number || *number < kFirstSpecialStep;
}

Launcher innermost(const Variables& variables) {
  if (variables.has("TORCHELASTIC_RUN_ID")) return Launcher::torchrun;
  if (variables.has("OMPI_COMM_WORLD_SIZE")) return Launcher::open_mpi;
  if (is_slurm_task(variables)) return Launcher::slurm;
  if (variables.has("PMI_SIZE")) return Launcher::pmi;
  // One of the two alone is a mistake, but WORLD_SIZE=1 says nothing.
  if (variables.has("RANK") || variables.find("WORLD_SIZE").value_or("1") != "1") return Launcher::environment;
  return Launcher::none;
}

void check_agrees(const Variables& variables, const char* name, int value) {
  if (!variables.has(name)) return;
  const int other = variables.number(name, 0, kMostRanks);
  require(other == value, ExitCode::environment, name, " = ", other, ", but the launcher of this process says ", value,
          "; unset ", name, " or correct it");
}

}  // namespace

const char* launcher_name(Launcher launcher) {
  switch (launcher) {
    case Launcher::torchrun:
      return "torchrun";
    case Launcher::open_mpi:
    case Launcher::pmi:
      return "mpirun";
    case Launcher::slurm:
      return "srun";
    case Launcher::environment:
      return "a plain environment";
    case Launcher::none:
      break;
  }
  return "no launcher";
}

Launch detect_launch(const Environment& environment) {
  const Launcher launcher = innermost(Variables(environment, Launcher::none));
  const Variables variables(environment, launcher);
  Launch launch;
  switch (launcher) {
    case Launcher::torchrun:
      launch = from_torchrun(variables);
      break;
    case Launcher::open_mpi:
      launch = from_open_mpi(variables);
      break;
    case Launcher::slurm:
      launch = from_slurm(variables);
      break;
    case Launcher::pmi:
      launch = from_pmi(variables);
      break;
    case Launcher::environment:
      launch = from_plain(variables);
      break;
    case Launcher::none:
      return launch;
  }
  launch.launcher = launcher;
  check_agrees(variables, "RANK", launch.rank);
  check_agrees(variables, "WORLD_SIZE", launch.ranks);
  return launch;
}

Launch detect_launch() {
  return detect_launch([](const char* name) { return std::getenv(name); });
}

std::string describe(const Launch& launch) {
  if (launch.launcher == Launcher::none) return "one process, no launcher";
  return cat("rank ", launch.rank, " of ", launch.ranks, " by ", launcher_name(launch.launcher), ": ",
             launch.local_rank, " of ", launch.local_ranks, " on node ", launch.node, " of ", launch.nodes,
             ", meeting at ", launch.host, ":", launch.port, ", attempt ", launch.attempt);
}

}  // namespace hrm::parallel

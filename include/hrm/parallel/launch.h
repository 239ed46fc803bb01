#pragma once
// How this process was started: alone, or as one rank of several.

#include <functional>
#include <string>

namespace hrm::parallel {

enum class Launcher {
  none,
  torchrun,     // torchrun --no-python
  open_mpi,     // Open MPI's mpirun
  slurm,        // srun
  pmi,          // mpirun of MPICH, Intel MPI and others that follow PMI
  environment,  // RANK and WORLD_SIZE, set by a script
};

// "torchrun", "mpirun", "srun", "mpirun", "a plain environment"; for none "no launcher".
const char* launcher_name(Launcher launcher);

struct Launch {
  Launcher launcher = Launcher::none;
  int rank = 0;         // of all
  int ranks = 1;        // in all
  int local_rank = 0;   // of those on this node
  int local_ranks = 1;  // on this node
  int node = 0;
  int nodes = 1;
  // Where the ranks meet; rank 0's node.
  std::string host = "127.0.0.1";
  int port = 0;
  bool agent_store = false;   // torchrun's agent listens there, not rank 0
  std::string attempt = "0";  // counts the restarts of one job: ranks of different attempts must not meet
  std::string job = {};       // the launcher's name of the job, the same on all ranks; empty: it gives none
};

// The value of a variable, or null; std::getenv but for tests.
using Environment = std::function<const char*(const char* name)>;

// If several launchers left variables, the innermost counts: torchrun started by srun is torchrun, mpirun inside a
// Slurm allocation is mpirun. A Slurm batch script itself, or a shell inside an allocation, is not a rank. RANK and
// WORLD_SIZE must agree with another launcher's variables. Throws Error (ExitCode::environment) with the variable that
// is missing, not a number or contradicts another.
//
// Without MASTER_ADDR and MASTER_PORT: with Slurm, its first node and a port made of the job's and the step's number
// (20000 to 32767); with mpirun on one node, 127.0.0.1 and a port made of the job's name.
//
// Sources: the variables that `torchrun --help`, srun(1) and Open MPI's documentation name.
Launch detect_launch(const Environment& environment);
Launch detect_launch();

// "rank 5 of 8 by srun: 1 of 4 on node 1 of 2, meeting at node07:29500, attempt 0".
std::string describe(const Launch& launch);

}  // namespace hrm::parallel

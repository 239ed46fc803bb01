#pragma once
// The ranks of a command that can run as one of several: how they meet, which device each takes, how they leave.

#include <functional>
#include <memory>
#include <string>

#include "hrm/config/config.h"
#include "hrm/parallel/comm.h"
#include "hrm/parallel/launch.h"
#include "hrm/parallel/mesh.h"
#include "hrm/parallel/rendezvous.h"
#include "hrm/parallel/watchdog.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/task.h"

namespace hrm::train {

// This process alone, or all of the launch.
struct Ranks {
  parallel::Launch launch;
  std::unique_ptr<parallel::Rendezvous> rendezvous;  // outlives comm
  std::shared_ptr<parallel::Comm> comm;
  std::unique_ptr<parallel::Watchdog> watchdog;         // null with one rank and train.stuck_after_s = 0
  std::unique_ptr<parallel::NeighbourWatch> neighbour;  // null with one rank
  double heartbeat_s = 0;
  // What the body wants to do when it ends by an error, given as all ranks report it; empty: nothing.
  std::function<void(const parallel::Failure&)> on_failure;
};

// Meets the others, runs `body`, and leaves together with them. Returns its exit code when all ranks have reached the
// end. If `body` throws, the others are told why, and a process with several ranks ends here. Its exit code is the
// error's, or ExitCode::rank_failed if another rank was at fault. Ranks on one machine use one GPU each (take_one_gpu).
// Throws Error if they do not meet. `job`: what all ranks of this job share, and ranks of another job at the same port
// may not.
int run_as_ranks(const parallel::Launch& launch, const config::Config& config, const parallel::JobName& job,
                 const std::function<int(Ranks&)>& body);

// Rank `rank` of this many, of which it alone exists (parallel::make_fake_comm), for measurements. The launch is that
// of one process: nothing is met, watched or left. Throws Error(unexpected) for a rank outside of 0 to ranks - 1.
Ranks lone_rank(int rank, int ranks);

parallel::JobName job_of_run(const char* command, const config::RunConfig& run);

// Starts the runtime and the kernels and, on GPUs, NCCL between the processes of the launch: ranks.comm is another one
// after that. A collective operation. Throws Error (environment) when not all ranks have the same kind of device.
Runtime start_device(Ranks& ranks, const config::Config& config);

// The axes that the configuration divides the ranks into. A collective operation, after start_device(). Throws
// Error(usage) if the ranks do not divide. Rank 0 warns if parallel.zero has nothing to split.
std::shared_ptr<const parallel::Mesh> make_mesh(const Ranks& ranks, const config::Config& config);

// tasks::make_task() for a rank of the mesh.
std::unique_ptr<tasks::Task> make_task(const config::Config& config, const Runtime& runtime,
                                       const parallel::Mesh& mesh);

// A rank with another configuration or program would train something else, or hang in an operation that the others do
// not know. Throws Error (usage) naming it.
void check_same_program(parallel::Comm& comm, const std::string& config_json);

}  // namespace hrm::train

#include "train/ranks.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <span>
#include <thread>

#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/build_config.h"
#include "hrm/ops/start.h"
#include "hrm/runtime/describe_exception.h"
#include "hrm/runtime/memory_history.h"
#include "hrm/tasks/registry.h"
#if HRM_WITH_CUDA
#include <cuda_runtime_api.h>

#include "hrm/parallel/nccl_comm.h"
#endif

namespace hrm::train {
namespace {

Ranks meet(const parallel::Launch& launch, const config::Config& all, const parallel::JobName& job) {
  const config::ParallelConfig& config = all.parallel;
  Ranks ranks;
  ranks.launch = launch;
  ranks.comm = parallel::make_single_comm();
  const auto timeout_s = static_cast<double>(config.timeout_s);
  const double stuck_s = all.train.stuck_after_s;
  if (launch.ranks == 1) {
    if (stuck_s > 0) {
      ranks.watchdog = std::make_unique<parallel::Watchdog>(parallel::make_local_store(), 0, 1,
                                                            parallel::WatchdogOptions{.stuck_s = stuck_s});
    }
    return ranks;
  }
  require(2 * config.heartbeat_s <= timeout_s, ExitCode::usage, "parallel.heartbeat_s = ", config.heartbeat_s,
          " is more than half of parallel.timeout_s = ", config.timeout_s, "; show signs of life more often");
  ranks.rendezvous = std::make_unique<parallel::Rendezvous>(
      launch, parallel::RendezvousOptions{.meet_timeout_s = static_cast<double>(config.meet_timeout_s),
                                          .timeout_s = timeout_s,
                                          .interface = config.interface,
                                          .job = job});
  ranks.comm = ranks.rendezvous->make_gloo_comm();
  ranks.watchdog = std::make_unique<parallel::Watchdog>(ranks.rendezvous->connect(), launch.rank, launch.ranks,
                                                        parallel::WatchdogOptions{.heartbeat_s = config.heartbeat_s,
                                                                                  .timeout_s = timeout_s,
                                                                                  .stuck_s = stuck_s,
                                                                                  .agent_store = launch.agent_store});
  ranks.neighbour = parallel::watch_neighbour(*ranks.comm, [dog = ranks.watchdog.get()] { dog->suspect(); });
  ranks.heartbeat_s = config.heartbeat_s;
  return ranks;
}

// One of several ranks ends by an error. The others wait for it in some operation. They are told why, and nothing is
// torn down in an orderly way, which could wait for them in turn.
[[noreturn]] void leave_others(Ranks& ranks, const Described& error) {
  if (error.code == ExitCode::rank_failed) {
    // A broken connection does not tell who is at fault, heartbeats do: the watchdog ends this process then.
    ranks.watchdog->suspect();
    log::info(error.sentence);
    std::this_thread::sleep_for(std::chrono::duration<double>(4 * ranks.heartbeat_s));
  }
  const parallel::Failure failure = ranks.watchdog->failed(error.sentence, error.code);
  ExitCode code = error.code;
  if (failure.rank == ranks.launch.rank || code != ExitCode::rank_failed) {
    log::error("rank ", ranks.launch.rank, ": ", error.sentence);
  } else {
    log::error("rank ", ranks.launch.rank, " leaves: ", failure.sentence);
    code = failure.code;
  }
  if (ranks.on_failure) ranks.on_failure({failure.rank, failure.sentence, code, failure.stuck});
  std::cout.flush();
  std::fflush(nullptr);
  _exit(static_cast<int>(code));
}

// "the CPU", or "a GPU" with, behind a line break, which one.
std::string device_of(at::Device device) {
  if (device.is_cpu()) return "the CPU";
#if HRM_WITH_CUDA
  cudaDeviceProp properties{};
  cudaGetDeviceProperties(&properties, device.index());
  return "a GPU\n" + digest_hex(std::as_bytes(std::span(properties.uuid.bytes)));
#else
  return "a GPU\n";
#endif
}

void check_devices(const std::vector<std::string>& devices) {
  const auto kind = [&](size_t rank) { return devices[rank].substr(0, devices[rank].find('\n')); };
  for (size_t rank = 1; rank < devices.size(); ++rank) {
    require(kind(rank) == kind(0), ExitCode::environment, "rank ", rank, " would train on ", kind(rank), ", rank 0 on ",
            kind(0), "; start as many ranks on a node as it has GPUs, or train on CPUs: runtime.device=cpu");
    const auto same = std::find(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(rank), devices[rank]);
    const bool shared = kind(rank) == "a GPU" && same != devices.begin() + static_cast<std::ptrdiff_t>(rank);
    require(!shared, ExitCode::environment, "ranks ", same - devices.begin(), " and ", rank,
            " would share a GPU; start as many ranks on a node as it has GPUs, and let CUDA_VISIBLE_DEVICES list them "
            "all");
  }
}

}  // namespace

parallel::JobName job_of_run(const char* command, const config::RunConfig& run) {
  const std::filesystem::path folder = std::filesystem::path(run.dir) / run.name;
  std::error_code error;
  return {.run = cat(command, " ", folder.string()), .folder = std::filesystem::absolute(folder, error).string()};
}

int run_as_ranks(const parallel::Launch& launch, const config::Config& config, const parallel::JobName& job,
                 const std::function<int(Ranks&)>& body) {
  if (launch.ranks > 1 && config.runtime.device != config::DeviceChoice::cpu) {
    // Both are settled before anything touches a GPU, and before the others count on this process.
    take_one_gpu(launch.local_rank, launch.local_ranks);
    restart_for_allocator(config.runtime);
  }
  Ranks ranks = meet(launch, config, job);
  try {
    const int code = body(ranks);
    if (ranks.comm->alone()) return code;
    ranks.comm->barrier();  // rank 0 keeps the store: it leaves when all are done
    ranks.neighbour->part();
    ranks.watchdog->stop();
    return code;
  } catch (...) {
    const Described error = describe_exception(std::current_exception());
    if (!ranks.comm->alone()) leave_others(ranks, error);
    if (ranks.on_failure) ranks.on_failure({0, error.sentence, error.code, /*stuck=*/false});
    throw;
  }
}

Ranks lone_rank(int rank, int ranks) {
  Ranks lone;
  lone.comm = parallel::make_fake_comm(rank, ranks);
  return lone;
}

Runtime start_device(Ranks& ranks, const config::Config& config) {
  Runtime runtime = ops::start_runtime_and_ops(config, ranks.launch.local_ranks);
  if (config.profiling.memory) start_memory_history(runtime.device);
  if (ranks.launch.ranks == 1) return runtime;
  check_devices(ranks.comm->all_gather_text(device_of(runtime.device)));
#if HRM_WITH_CUDA
  if (runtime.device.is_cuda()) {
    ranks.comm = parallel::make_nccl_comm(ranks.comm, runtime.device, config.parallel.peer_memory);
    ranks.watchdog->set_report([comm = ranks.comm] { return comm->progress(); });
    // NCCL knows no time limit, as Gloo does.
    ranks.watchdog->limit_steps(static_cast<double>(config.parallel.timeout_s));
  }
#endif
  return runtime;
}

std::shared_ptr<const parallel::Mesh> make_mesh(const Ranks& ranks, const config::Config& config) {
  const parallel::MeshShape shape = parallel::mesh_shape(config.parallel);
  const parallel::MeshPlace place(ranks.comm->rank(), ranks.comm->ranks(), shape);
  parallel::check_groups(place, config.parallel);
  if (const std::string idle = parallel::idle_zero_text(place, config.parallel); !idle.empty() && ranks.comm->main()) {
    log::warn(idle);
  }
  auto mesh = std::make_shared<const parallel::Mesh>(ranks.comm, shape);
  if (ranks.launch.ranks == 1) return mesh;
  std::function<std::string(int)> place_of;
  if (!place.plain()) place_of = [place](int rank) { return place.of(rank).describe(); };
  ranks.watchdog->set_mesh(place_of, [mesh] { return mesh->waiting(); });
  if (!ranks.comm->progress().empty()) ranks.watchdog->set_report([mesh] { return mesh->progress(); });
  return mesh;
}

std::unique_ptr<tasks::Task> make_task(const config::Config& config, const Runtime& runtime,
                                       const parallel::Mesh& mesh) {
  return tasks::make_task(config, runtime, mesh.shared_axis(parallel::Axis::data),
                          mesh.shared_axis(parallel::Axis::tensor));
}

void check_same_program(parallel::Comm& comm, const std::string& config_json) {
  const std::string own = cat(build_info("commit"), " ", digest_hex(as_bytes(config_json)));
  const auto all = comm.all_gather_text(own);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    require(all[rank] == all[0], ExitCode::usage, "rank ", rank, " has another ",
            all[rank].substr(0, all[rank].find(' ')) == all[0].substr(0, all[0].find(' ')) ? "configuration" : "build",
            " than rank 0: give all ranks the same");
  }
}

}  // namespace hrm::train

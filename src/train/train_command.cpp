#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/config/load.h"
#include "hrm/config/schema.h"
#include "hrm/ops/gemm_tuning.h"
#include "hrm/parallel/gathered_state.h"
#include "hrm/parallel/launch.h"
#include "hrm/parallel/rendezvous.h"
#include "hrm/parallel/watchdog.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/puzzle.h"
#include "hrm/tasks/puzzle_inference.h"
#include "hrm/train/commands.h"
#include "hrm/train/signals.h"
#include "hrm/train/trainer.h"

namespace hrm::train {
namespace {

namespace fs = std::filesystem;

// Keeps a second process out of a run folder for as long as this object lives (the lock goes with the process).
class RunLock {
 public:
  explicit RunLock(const fs::path& run_dir) {
    make_directories(run_dir);
    const fs::path file = run_dir / ".lock";
    fd_ = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    require(fd_ >= 0, ExitCode::environment, "cannot write in the run folder '", run_dir.string(),
            "': ", std::strerror(errno), "; choose another run.dir");
    if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
    const int error = errno;
    close(fd_);
    require(error != EWOULDBLOCK, ExitCode::environment, "another process trains in '", run_dir.string(),
            "'; stop it, or choose another run.name");
    fail(ExitCode::environment, "cannot lock '", file.string(), "': ", std::strerror(error),
         "; choose another run.dir");
  }
  ~RunLock() { close(fd_); }
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_;
};

// The ranks of a training: this process alone, or the launch's.
struct Ranks {
  parallel::Launch launch;
  std::unique_ptr<parallel::Rendezvous> rendezvous;  // outlives comm
  std::shared_ptr<parallel::Comm> comm;
  std::unique_ptr<parallel::Watchdog> watchdog;  // null with one rank
  double heartbeat_s = 0;
};

Ranks meet(const parallel::Launch& launch, const config::ParallelConfig& config) {
  Ranks ranks{launch, nullptr, parallel::make_single_comm(), nullptr};
  if (launch.ranks == 1) return ranks;
  ranks.rendezvous = std::make_unique<parallel::Rendezvous>(
      launch, parallel::RendezvousOptions{.meet_timeout_s = static_cast<double>(config.meet_timeout_s),
                                          .timeout_s = static_cast<double>(config.timeout_s),
                                          .interface = config.interface});
  require(2 * config.heartbeat_s <= static_cast<double>(config.timeout_s), ExitCode::usage,
          "parallel.heartbeat_s = ", config.heartbeat_s,
          " is more than half of parallel.timeout_s = ", config.timeout_s, "; show signs of life more often");
  ranks.comm = ranks.rendezvous->make_gloo_comm();
  ranks.watchdog =
      std::make_unique<parallel::Watchdog>(ranks.rendezvous->connect(), launch.rank, launch.ranks,
                                           parallel::WatchdogOptions{.heartbeat_s = config.heartbeat_s,
                                                                     .timeout_s = static_cast<double>(config.timeout_s),
                                                                     .agent_store = launch.agent_store});
  ranks.heartbeat_s = config.heartbeat_s;
  return ranks;
}

// One of several ranks ends by an error. The others wait for it in some operation: they are told why, and nothing is
// torn down in an orderly way, which could wait for them in turn.
[[noreturn]] void leave_others(Ranks& ranks, const std::string& sentence, ExitCode code) {
  if (code == ExitCode::rank_failed) {
    // A broken connection does not tell who is at fault, heartbeats do: the watchdog ends this process then.
    ranks.watchdog->suspect();
    std::this_thread::sleep_for(std::chrono::duration<double>(4 * ranks.heartbeat_s));
  }
  const parallel::Failure failure = ranks.watchdog->failed(sentence);
  if (failure.rank == ranks.launch.rank) {
    log::error("rank ", ranks.launch.rank, ": ", sentence);
  } else {
    log::error("rank ", ranks.launch.rank, " leaves: ", failure.sentence);
    code = ExitCode::rank_failed;
  }
  std::cout.flush();
  std::fflush(nullptr);
  _exit(static_cast<int>(code));
}

// A rank with another configuration or program would train something else, or hang in an operation that the others do
// not know.
void check_same_program(parallel::Comm& comm, const std::string& config_json) {
  const std::string own = cat(build_info("commit"), " ", digest_hex(as_bytes(config_json)));
  const auto all = comm.all_gather_text(own);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    require(all[rank] == all[0], ExitCode::usage, "rank ", rank, " has another ",
            all[rank].substr(0, all[rank].find(' ')) == all[0].substr(0, all[0].find(' ')) ? "configuration" : "build",
            " than rank 0: give all ranks the same");
  }
}

// The log of several ranks is rank 0's; the others keep theirs in files and say on the screen what goes wrong.
void open_log(const fs::path& run_dir, const parallel::Comm& comm) {
  if (!comm.main()) log::set_level(log::Level::error);
  make_directories(run_dir / "log");
  log::open_file(run_dir / "log" / cat("rank_", comm.rank(), ".log"));
}

void write_environment(const fs::path& run_dir, const Runtime& runtime) {
  char when[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  nlohmann::ordered_json json;
  json["started"] = when;
  json["device"] = runtime.device_name;
  json["precision"] = runtime.precision.name;
  json["allocator"] = runtime.allocator;
  json["peak_flops_assumed"] = runtime.peak_flops;
  json["peak_flops_origin"] = runtime.peak_flops_origin;
  for (const auto& [key, value] : build_info()) json["build"][key] = value;
  write_text_atomic(run_dir / "environment.json", json.dump(2) + "\n");
}

struct Start {
  fs::path checkpoint;  // empty: from scratch
  checkpoint::CheckpointMeta meta;
};

Start choose_start(const TrainOptions& options, const fs::path& run_dir) {
  if (options.resume == "never") {
    require(checkpoint::list_checkpoints(run_dir).empty(), ExitCode::usage, "'", run_dir.string(),
            "' already holds checkpoints and --resume never would overwrite them; choose another run.name");
    return {};
  }
  if (options.resume == "auto") {
    const auto found = checkpoint::find_latest_valid(run_dir);
    if (!found) return {};
    return {found->dir, found->meta};
  }
  const auto found = checkpoint::open_checkpoint(options.resume);
  // Going on from an older step of this run would leave two futures in one folder, and the next --resume auto would
  // take the abandoned one.
  const auto own = checkpoint::list_checkpoints(run_dir);
  require(own.empty() || fs::equivalent(own.front(), found.dir), ExitCode::usage, "'", run_dir.string(),
          "' holds other checkpoints than '", found.dir.string(), "', the newest at ",
          own.empty() ? "" : own.front().filename().string(), "; give the branch its own run.name");
  return {found.dir, found.meta};
}

// Rank 0 looks for the checkpoint, so that a file system that shows ranks different things cannot part them.
Start choose_start(const TrainOptions& options, const fs::path& run_dir, parallel::Comm& comm) {
  Start start;
  if (comm.main()) start = choose_start(options, run_dir);
  if (comm.alone()) return start;
  const std::string chosen = comm.all_gather_text(start.checkpoint.string())[0];
  if (comm.main() || chosen.empty()) return start;
  const auto found = checkpoint::open_checkpoint(chosen);
  return {found.dir, found.meta};
}

// What a resume may not change: the samples and the draws of the steps to come would silently be other ones.
void check_resume_config(const config::LoadedConfig& now, const Start& start) {
  const fs::path file = start.checkpoint / "config.json";
  const config::LoadedConfig then = config::config_from_json_text(start.meta.config_json, file.string());
  constexpr std::array kFixed = {
      "run.seed",      "data.train",     "data.kind",       "data.augmentation",           "data.box_rows",
      "data.box_cols", "data.subsample", "data.min_rating", "model.halt_exploration_prob", "data.reference_semantics"};
  std::string changed;
  for (const std::string& key : config::differing_keys(now.config, then.config)) {
    require(std::find(kFixed.begin(), kFixed.end(), key) == kFixed.end(), ExitCode::usage, key, " (",
            now.origin(key).text(), ") is not what the checkpoint '", start.checkpoint.string(),
            "' was trained with; set it back, or start another run.name");
    if (key.rfind("run.", 0) != 0) changed += (changed.empty() ? "" : ", ") + key;
  }
  if (!changed.empty()) log::info("changed since the checkpoint: ", changed);
}

int train(const TrainOptions& options, const config::LoadedConfig& loaded, Ranks& ranks) {
  const config::Config& config = loaded.config;
  parallel::Comm& comm = *ranks.comm;
  const fs::path run_dir = fs::path(config.run.dir) / config.run.name;
  check_same_program(comm, loaded.to_json());
  std::optional<RunLock> lock;
  if (comm.main()) lock.emplace(run_dir);
  open_log(run_dir, comm);

  const Runtime runtime = tasks::start_runtime_and_ops(config, ranks.launch.local_ranks);
  require(comm.alone() || runtime.device.is_cpu(), ExitCode::environment, "this version trains with one GPU, but ",
          comm.ranks(), " ranks were started by ", parallel::launcher_name(ranks.launch.launcher),
          "; start one, or train on CPUs: runtime.device=cpu");
  install_signal_handlers();

  tasks::PuzzleTask task(config, runtime, ranks.comm);
  Trainer trainer(config, loaded.to_json(), runtime, task, run_dir, ranks.comm);
  trainer.set_watchdog(ranks.watchdog.get());
  log::info("run folder   ", run_dir.string());
  if (!comm.alone()) log::info("ranks        ", parallel::describe(ranks.launch), "; ", comm.describe());
  log::info("device       ", runtime.device_name, ", ", runtime.precision.name,
            runtime.peak_flops > 0 ? cat(", MFU against ", std::round(runtime.peak_flops / 1e9) / 1e3, " TFLOP/s (",
                                         runtime.peak_flops_origin, ")")
                                   : std::string());
  if (runtime.device.is_cuda()) {
    log::info("execution    ", config.runtime.cuda_graphs ? "steps captured in CUDA graphs" : "eager steps",
              config.runtime.deterministic ? ", deterministic" : "",
              config.runtime.cudnn_benchmark ? ", cuDNN benchmark" : "", ", memory: ", runtime.allocator);
  }
  log::info(task.describe());

  const Start start = choose_start(options, run_dir, comm);
  if (start.checkpoint.empty()) {
    log::info("training     ", trainer.total_steps(), " steps of ", config.train.global_batch_size, " samples");
    trainer.start_fresh();
  } else if (start.meta.kind == checkpoint::CheckpointKind::weights) {
    checkpoint::load_weights_into(start.checkpoint, task);
    trainer.start_fresh();
    log::info("weights from ", start.checkpoint.string(), "; optimizer and data start afresh");
  } else {
    check_resume_config(loaded, start);
    if (const auto tuned = start.meta.info.find(ops::kGemmChoices);
        tuned != start.meta.info.end() && ops::gemm_tuning() != ops::GemmTuning::off) {
      ops::adopt_gemm_choices(tuned->second);
    }
    trainer.resume(start.checkpoint);
    log::info("resumed      ", start.checkpoint.string(), " at step ", trainer.step(), " of ", trainer.total_steps());
  }
  parallel::check_replicas(trainer, comm);
  if (comm.main()) {
    write_text_atomic(run_dir / "config.json", loaded.to_json());
    write_environment(run_dir, runtime);
  }

  if (trainer.finished()) {
    log::info("this run is finished: ", trainer.step(), " of ", trainer.total_steps(),
              " steps are done; set train.steps higher to go on");
    return static_cast<int>(ExitCode::done);
  }
  const Outcome outcome = trainer.run();
  if (outcome == Outcome::stopped) return static_cast<int>(ExitCode::stopped);
  log::info("finished ", trainer.total_steps(), " steps; checkpoints are in ", (run_dir / "checkpoints").string());
  return static_cast<int>(ExitCode::done);
}

}  // namespace

int run_train(const TrainOptions& options) {
  const parallel::Launch launch = parallel::detect_launch();
  const config::LoadedConfig loaded = config::load_config(options.config_files, options.overrides);
  config::validate(loaded);
  Ranks ranks = meet(launch, loaded.config.parallel);
  if (ranks.comm->alone()) return train(options, loaded, ranks);
  try {
    const int code = train(options, loaded, ranks);
    ranks.comm->barrier();  // rank 0 keeps the store: it leaves when all are done
    ranks.watchdog->stop();
    return code;
  } catch (const Error& error) {
    leave_others(ranks, error.what(), error.code());
  } catch (const std::exception& error) {
    leave_others(ranks, cat("unexpected error: ", std::string(error.what()).substr(0, 500)), ExitCode::unexpected);
  }
}

}  // namespace hrm::train

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>

#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/config/load.h"
#include "hrm/config/schema.h"
#include "hrm/ops/gemm_tuning.h"
#include "hrm/parallel/gathered_state.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/puzzle.h"
#include "hrm/train/commands.h"
#include "hrm/train/signals.h"
#include "hrm/train/trainer.h"
#include "train/ranks.h"

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
  const fs::path run_dir = fs::path(config.run.dir) / config.run.name;
  check_same_program(*ranks.comm, loaded.to_json());
  std::optional<RunLock> lock;
  if (ranks.comm->main()) lock.emplace(run_dir);
  open_log(run_dir, *ranks.comm);
  const Runtime runtime = start_device(ranks, config);
  parallel::Comm& comm = *ranks.comm;

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
  keep_signals_from_computing();
  const parallel::Launch launch = parallel::detect_launch();
  const config::LoadedConfig loaded = config::load_config(options.config_files, options.overrides);
  config::validate(loaded);
  return run_as_ranks(launch, loaded.config, [&](Ranks& ranks) { return train(options, loaded, ranks); });
}

}  // namespace hrm::train

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/commands/commands.h"
#include "hrm/config/load.h"
#include "hrm/config/schema.h"
#include "hrm/ops/gemm_tuning.h"
#include "hrm/parallel/replicas.h"
#include "hrm/runtime/device.h"
#include "hrm/runtime/gpu_health.h"
#include "hrm/runtime/memory.h"
#include "hrm/tasks/registry.h"
#include "hrm/train/signals.h"
#include "hrm/train/trainer.h"
#include "train/ranks.h"
#include "train/run_events.h"
#include "train/run_folder.h"

namespace hrm::commands {
namespace {

namespace fs = std::filesystem;

// The log of several ranks is rank 0's; the others keep theirs in files and say on the screen what goes wrong.
void open_log(const fs::path& run_dir, const parallel::Comm& comm) {
  if (!comm.main()) log::set_level(log::Level::error);
  make_directories(run_dir / "log");
  log::open_file(run_dir / "log" / cat("rank_", comm.rank(), ".log"));
}

struct Start {
  fs::path checkpoint;  // empty: from scratch
  checkpoint::CheckpointMeta meta;
  bool weights_only = false;  // a new training begins with them
};

// What --init names.
Start begin_with(const std::string& init) {
  if (init.empty()) return {};
  const auto found = checkpoint::open_checkpoint(init);
  return {found.dir, found.meta, true};
}

Start choose_start(const TrainOptions& options, const fs::path& run_dir) {
  if (options.resume == "never") {
    require(checkpoint::list_checkpoints(run_dir).empty(), ExitCode::usage, "'", run_dir.string(),
            "' already holds checkpoints and --resume never would overwrite them; choose another run.name");
    return begin_with(options.init);
  }
  if (options.resume == "auto") {
    const auto found = checkpoint::find_latest_valid(run_dir, checkpoint::Quarantine::yes);
    if (!found) return begin_with(options.init);
    return {found->dir, found->meta};
  }
  require(options.init.empty(), ExitCode::usage, "--resume ", options.resume, " and --init ", options.init,
          " both name a checkpoint; give one of them");
  const auto found = checkpoint::open_checkpoint(options.resume);
  // Resuming from an older step of this run would leave two futures in one folder, and the next --resume auto would
  // pick the abandoned one.
  const auto own = checkpoint::list_checkpoints(run_dir);
  require(own.empty() || fs::equivalent(own.front(), found.dir), ExitCode::usage, "'", run_dir.string(),
          "' holds other checkpoints than '", found.dir.string(), "', the newest at ",
          own.empty() ? "" : own.front().filename().string(), "; give the branch its own run.name");
  return {found.dir, found.meta, found.meta.weights_only()};
}

// Rank 0 has looked for the checkpoint and verified it, so that a file system that shows ranks different things cannot
// part them; the others open the same. Each verifies the files that it reads when it does.
void share_start(Start& start, parallel::Comm& comm) {
  if (comm.alone()) return;
  const std::string chosen = comm.all_gather_text(start.checkpoint.string())[0];
  const bool weights_only = comm.all_gather_text(start.weights_only ? "weights" : "all")[0] == "weights";
  if (comm.main() || chosen.empty()) return;
  const auto found = checkpoint::read_meta(chosen);
  start = {found.dir, found.meta, weights_only};
}

Start choose_start(const TrainOptions& options, const fs::path& run_dir, parallel::Comm& comm) {
  Start start;
  if (comm.main()) start = choose_start(options, run_dir);
  share_start(start, comm);
  return start;
}

// What the checkpoint was trained with.
config::LoadedConfig config_of(const Start& start) {
  return tasks::stored_settings({start.checkpoint, start.meta});
}

void check_resume_config(const config::LoadedConfig& now, const Start& start) {
  const config::LoadedConfig then = config_of(start);
  std::string changed;
  for (const std::string& key : config::differing_keys(now.config, then.config)) {
    const config::Resume resume = config::find_field(key)->resume;
    const bool structure = resume == config::Resume::architecture;
    const auto value_in = [&](const config::Config& config) {
      return config::safe_json(config::to_text(config::find_field(key)->get(config)));
    };
    require(resume == config::Resume::free, structure ? ExitCode::checkpoint : ExitCode::usage, key, " = ",
            value_in(now.config), " (", now.origin(key).text(), "), but the checkpoint '", start.checkpoint.string(),
            "' was trained with ", value_in(then.config), structure ? ": it belongs to another architecture" : "",
            "; set it back, or start another run.name");
    if (!key.starts_with("run.")) changed += (changed.empty() ? "" : ", ") + key;
  }
  if (!changed.empty()) log::info("changed since the checkpoint: ", changed);
}

// A model of the same shapes may still compute something else.
void check_init_config(const config::LoadedConfig& now, const Start& start) {
  const config::LoadedConfig then = config_of(start);
  const tasks::TaskSpec &spec = tasks::task_spec(now.config), &spec_then = tasks::task_spec(then.config);
  require(&spec == &spec_then && spec.begins_with_weights, ExitCode::usage,
          "a new run begins with the weights of a checkpoint in task puzzle alone, and '", start.checkpoint.string(),
          "' is of task ", then.config.task, ", this run of task ", now.config.task,
          "; models of transformers are named by hf.model and lora.adapter");
  const auto is_free = [&](const std::string& key) {
    return std::find(spec.free_at_init.begin(), spec.free_at_init.end(), key) != spec.free_at_init.end();
  };
  for (const std::string& key : config::differing_keys(now.config, then.config)) {
    if (config::find_field(key)->resume != config::Resume::architecture || is_free(key)) continue;
    const auto value_in = [&](const config::Config& config) {
      return config::safe_json(config::to_text(config::find_field(key)->get(config)));
    };
    fail(ExitCode::checkpoint, key, " = ", value_in(now.config), " (", now.origin(key).text(),
         "), but the checkpoint '", start.checkpoint.string(), "' was trained with ", value_in(then.config),
         ": it belongs to another architecture; set it to the checkpoint's");
  }
}

// Where a training continues after a spike of the loss, and what it leaves out.
struct Rewind {
  Start start;
  int64_t spike_step = 0;
  int64_t rewinds = 0;  // this one included
};

// The newest good checkpoint that is far enough before the spike. Later ones are renamed, so that no resume uses them.
// nullopt: there is none.
std::optional<Rewind> choose_rewind(const config::TrainConfig& config, const train::Trainer& trainer,
                                    const fs::path& run_dir, parallel::Comm& comm) {
  Start start;
  if (comm.main()) {
    const auto found = checkpoint::find_before(run_dir, trainer.spike_step() - config.spike_rewind_steps);
    if (found) {
      start = {found->dir, found->meta};
      checkpoint::delete_after(run_dir, found->meta.step);
    } else {
      log::warn("no checkpoint lies ", config.spike_rewind_steps, " steps before step ", trainer.spike_step(),
                " (train.spike_rewind_steps): going on without its update");
    }
  }
  share_start(start, comm);
  if (start.checkpoint.empty()) return std::nullopt;
  return Rewind{start, trainer.spike_step(), trainer.rewinds() + 1};
}

// A run continues with its own puzzles; their number is the first that tells others.
void check_resume_puzzles(const tasks::Task& task, const Start& start) {
  constexpr const char* kCount = "num_puzzle_identifiers";
  const auto signature = task.signature();
  const auto now = signature.find(kCount);
  const auto then = start.meta.info.find(kCount);
  if (now == signature.end() || then == start.meta.info.end()) return;
  require(now->second == then->second, ExitCode::data, "'", start.checkpoint.string(), "' was trained with ",
          then->second, " puzzle identifiers, and the training data have ", now->second,
          "; to begin a new run with its weights give --init in place of --resume, and a run.name of its own");
}

void resume(train::Trainer& trainer, const tasks::Task& task, const config::LoadedConfig& loaded, const Start& start,
            bool accept_data_change) {
  check_resume_config(loaded, start);
  check_resume_puzzles(task, start);
  if (const auto tuned = start.meta.info.find(ops::kGemmChoices);
      tuned != start.meta.info.end() && ops::gemm_tuning() != ops::GemmTuning::off) {
    ops::adopt_gemm_choices(tuned->second);
  }
  trainer.resume(start.checkpoint, start.meta.info, accept_data_change);
  log::info("resumed      ", start.checkpoint.string(), " at step ", trainer.step(), " of ", trainer.total_steps());
}

void describe_start(const fs::path& run_dir, const config::Config& config, const Runtime& runtime,
                    const train::Ranks& ranks) {
  log::info("run folder   ", run_dir.string());
  if (!ranks.comm->alone()) log::info("ranks        ", parallel::describe(ranks.launch), "; ", ranks.comm->describe());
  log::info("device       ", runtime.device_name, ", ", runtime.precision.name,
            runtime.peak_flops > 0 ? cat(", MFU against ", std::round(runtime.peak_flops / 1e9) / 1e3, " TFLOP/s (",
                                         runtime.peak_flops_origin, ")")
                                   : std::string());
  if (runtime.device.is_cpu()) {
    const int threads = at::get_num_threads();
    if (threads == 1) return;
    log::info("threads      ", threads, ", which wait for each other ", thread_waiting(),
              "; where other programs keep the cores busy, runtime.threads=1 or OMP_WAIT_POLICY=PASSIVE is faster");
    return;
  }
  log::info("execution    ", config.runtime.cuda_graphs ? "steps captured in CUDA graphs" : "eager steps",
            config.runtime.deterministic ? ", deterministic" : "",
            config.runtime.cudnn_benchmark ? ", cuDNN benchmark" : "", ", memory: ", runtime.allocator);
}

// The configuration that continues with a checkpoint: what the task keeps of it is taken over.
config::LoadedConfig with_kept_settings(config::LoadedConfig loaded, const Start& start) {
  const auto keep = tasks::task_spec(loaded.config).keep_settings;
  if (keep == nullptr || start.checkpoint.empty() || start.meta.weights_only()) {
    return loaded;
  }
  keep(loaded, config_of(start).config, start.checkpoint.string());
  return loaded;
}

// Trains from the run's last checkpoint, or from where `rewind` says, which becomes where to continue if the outcome is
// Outcome::rewind.
train::Outcome train_from(const TrainOptions& options, const config::LoadedConfig& asked, train::Ranks& ranks,
                          const Runtime& runtime, const fs::path& run_dir, GpuHealth* health, train::RunEvents& events,
                          std::optional<Rewind>& rewind) {
  parallel::Comm& comm = *ranks.comm;
  const Start start = rewind ? rewind->start : choose_start(options, run_dir, comm);
  const config::LoadedConfig loaded = with_kept_settings(asked, start);
  const config::Config& config = loaded.config;
  const std::shared_ptr<const parallel::Mesh> mesh = train::make_mesh(ranks, config);
  const std::unique_ptr<tasks::Task> owned = train::make_task(config, runtime, *mesh);
  tasks::Task& task = *owned;
  train::Trainer trainer(config, loaded.to_json(), runtime, task, run_dir, ranks.comm, mesh);
  trainer.set_watchdog(ranks.watchdog.get());
  trainer.set_gpu_health(health);
  if (rewind) {
    resume(trainer, task, loaded, rewind->start, /*accept_data_change=*/true);  // looked at when the process began
    trainer.skip_after_rewind(rewind->spike_step, rewind->rewinds);
    log::info("went back from the spike at step ", rewind->spike_step, " to step ", trainer.step(), "; the ",
              rewind->spike_step - trainer.step(), " batches in between are left out");
  } else {
    describe_start(run_dir, config, runtime, ranks);
    if (!mesh->place().plain()) log::info("mesh         this is ", mesh->place().describe());
    log::info(task.describe());
    if (start.checkpoint.empty()) {
      log::info("training     ", trainer.total_steps(), " steps of ", config.train.global_batch_size, " samples");
      trainer.start_fresh();
    } else if (start.weights_only) {
      check_init_config(loaded, start);
      trainer.start_from(start.checkpoint, task.weights_by_sample());
      log::info("weights from ", start.checkpoint.string(), "; optimizer and data start afresh");
    } else {
      resume(trainer, task, loaded, start, options.accept_data_change);
    }
  }
  parallel::check_replicas(trainer, comm);
  log::info("memory       at the start: ", memory_text(memory_report(runtime.device)));
  trainer.prepare_checkpoints();
  if (comm.main()) {
    write_text_atomic(run_dir / "config.json", loaded.to_json());
    train::write_environment(run_dir, runtime);
    task.write_files(run_dir);
  }
  if (trainer.finished()) {
    const bool early = trainer.step() < trainer.total_steps();
    log::info("this run is finished: ", trainer.step(), " of ", trainer.total_steps(), " steps are done; set ",
              early ? "train.early_stop_evals" : "train.steps", " higher to continue");
    return train::Outcome::finished;  // and was so before: no event
  }
  events.trains(trainer);
  while (true) {
    const train::Outcome outcome = trainer.run();
    if (outcome == train::Outcome::finished) {
      log::info("finished ", trainer.step(), " steps; checkpoints are in ", (run_dir / "checkpoints").string());
      events.tell(train::RunEvent::finished, ExitCode::done, cat("finished ", trainer.step(), " steps"));
    }
    if (outcome == train::Outcome::stopped) {
      events.tell(train::RunEvent::stopped, ExitCode::stopped, trainer.stop_text());
    }
    if (outcome != train::Outcome::rewind) return outcome;
    rewind = choose_rewind(config.train, trainer, run_dir, comm);
    if (rewind) return outcome;
    trainer.go_on_after_spike();
  }
}

int train(const TrainOptions& options, const config::LoadedConfig& loaded, train::Ranks& ranks) {
  const config::Config& config = loaded.config;
  const fs::path run_dir = fs::path(config.run.dir) / config.run.name;
  train::check_same_program(*ranks.comm, loaded.to_json());
  std::optional<train::RunLock> lock;
  if (ranks.comm->main()) lock.emplace(run_dir);
  open_log(run_dir, *ranks.comm);
  const auto events = std::make_shared<train::RunEvents>(config.run, run_dir, ranks.comm->main(), ranks.watchdog.get());
  ranks.on_failure = [events, rank = ranks.launch.rank](const parallel::Failure& failure) {
    events->tell_failure(failure, rank);
  };
  if (ranks.watchdog) ranks.watchdog->set_before_leaving(ranks.on_failure);
  const Runtime runtime = train::start_device(ranks, config);
  train::install_signal_handlers();
  const std::unique_ptr<GpuHealth> health = watch_gpu(runtime.device, config.profiling.gpu_health_s);
  std::optional<Rewind> rewind;
  train::Outcome outcome = train::Outcome::rewind;
  while (outcome == train::Outcome::rewind) {
    outcome = train_from(options, loaded, ranks, runtime, run_dir, health.get(), *events, rewind);
  }
  return static_cast<int>(outcome == train::Outcome::stopped ? ExitCode::stopped : ExitCode::done);
}

}  // namespace

int run_train(const TrainOptions& options) {
  train::keep_signals_from_computing();
  const parallel::Launch launch = parallel::detect_launch();
  const config::LoadedConfig loaded = config::load_config(options.config_files, options.overrides);
  tasks::check_settings(loaded);
  train::set_creation_mask(loaded.config.run.group_readable);
  return train::run_as_ranks(launch, loaded.config, train::job_of_run("train", loaded.config.run),
                             [&](train::Ranks& ranks) { return train(options, loaded, ranks); });
}

}  // namespace hrm::commands

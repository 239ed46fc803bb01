#pragma once
// The training loop, the same for every task. See src/train/trainer.cpp: run() is the loop on one screen.

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/config/config.h"
#include "hrm/optim/ema.h"
#include "hrm/optim/optimizer.h"
#include "hrm/parallel/comm.h"
#include "hrm/parallel/cut_entries.h"
#include "hrm/parallel/gradient_reducer.h"
#include "hrm/parallel/mesh.h"
#include "hrm/parallel/parameter_shards.h"
#include "hrm/parallel/slow_ranks.h"
#include "hrm/parallel/step_clock.h"
#include "hrm/parallel/tensor_gradients.h"
#include "hrm/parallel/watchdog.h"
#include "hrm/runtime/async_read.h"
#include "hrm/runtime/captured_step.h"
#include "hrm/runtime/device.h"
#include "hrm/runtime/gpu_health.h"
#include "hrm/runtime/loss_scaler.h"
#include "hrm/runtime/phase_clock.h"
#include "hrm/tasks/task.h"
#include "hrm/train/run_log.h"

namespace hrm::train {

// rewind: a spike of the loss asks for an earlier checkpoint (Trainer::spike_step).
enum class Outcome { finished, stopped, rewind };

class EarlyStop;
class MetricWindow;
class RunCheckpoints;
class StepGuard;
class MemoryWindow;
class TraceWindow;

// How many values of a step (float64) travel in its sum over the ranks: `task_sums` of the task, behind those of the
// loop.
int64_t summed_values(int64_t ranks, int64_t task_sums);

class Trainer : public Stateful {
 public:
  // `config_json`: the resolved configuration, stored in every checkpoint. With an empty `run_dir` nothing is written;
  // then call only run_steps(). `comm`: the ranks that train together, as the task has them; null = only this one. All
  // ranks call the same methods. Only rank 0 writes into the folder, except traces and parts of checkpoints. `mesh`:
  // how `comm` is divided into axes; null: all ranks read other rows.
  Trainer(const config::Config& config, std::string config_json, const Runtime& runtime, tasks::Task& task,
          std::filesystem::path run_dir, std::shared_ptr<parallel::Comm> comm = nullptr,
          std::shared_ptr<const parallel::Mesh> mesh = nullptr);
  ~Trainer() override;

  // Whom run() tells what it does; must live as long. Null: nobody.
  void set_watchdog(parallel::Watchdog* watchdog) { watchdog_ = watchdog; }

  // Whose values join the lines of metrics; must live as long. Null: none.
  void set_gpu_health(GpuHealth* health) { gpu_health_ = health; }

  // Resumes from a checkpoint of this run; call before run(). `info`: the checkpoint's info. Its digests (of training
  // data and of the next batch) must equal the current ones: otherwise Error(data). `accept_data_change` accepts other
  // data and logs it.
  void resume(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& info = {},
              bool accept_data_change = false);

  // After Outcome::rewind: the step that was a spike, and how often the run has rewound. Either another Trainer resumes
  // from an earlier checkpoint and calls skip_after_rewind(), which skips the batches up to that step and saves. Or
  // run() of this one continues, without that step's update.
  int64_t spike_step() const { return spike_step_; }
  int64_t rewinds() const { return rewinds_; }
  void skip_after_rewind(int64_t spike_step, int64_t rewinds);
  void go_on_after_spike() { spike_step_ = -1; }

  // Of run(): tries whether the run folder can hold the checkpoints, and makes room in memory for one. A collective
  // operation.
  // Throws Error(environment).
  void prepare_checkpoints();

  // Starts from the weights that the task holds now, instead of resume(): call before run().
  void start_fresh();
  // The same, from the averages of a checkpoint, or its weights if it has none. `by_mean`: as load_weights_into().
  void start_from(const std::filesystem::path& checkpoint, const std::vector<std::string>& by_mean = {});

  // Trains to the configured number of steps. A signal (train/signals.h) stops it after a step, or within an
  // evaluation, which the resumed run repeats. A signal to any rank stops all ranks after the same step, a few steps
  // later. Throws Error(diverged) for a non-finite loss or gradient, after writing a dump with the weights before the
  // bad step.
  Outcome run();

  // Trains this many further steps and nothing else: no evaluation, no checkpoint, no trace, no stop by signal, and not
  // bounded by the configured number. What `bench step` times. Throws as run().
  void run_steps(int64_t count);
  // Waits for the device and reads the metrics of all steps so far.
  void wait_for_metrics() { collect_metrics(/*wait=*/true); }

  // Everything that a resume needs: step counters, task, optimizer, averages, the open metrics window.
  void visit_state(StateVisitor& visitor) override;

  // For `bench graphs`, after a step: `count` times `repeats` steps of device work on the batch at hand, as one
  // captured work. The weights change as by steps, but no step is counted or reported. Whether the last was a replay.
  bool run_repeated(int64_t repeats, int64_t count);

  // Time that the steps of this process spent waiting for data.
  double data_wait_ms() const { return data_wait_ms_; }

  // How the steps run: replays so far, and why they are not captured where they are not.
  const CapturedStep& captured_step() const { return captured_; }

  // Where gradients are and travel.
  const parallel::GradientReducer& reducer() const { return *reducer_; }
  // Null unless weights take turns (parallel.zero=3).
  const parallel::WeightGather* weights() const { return shards_ ? shards_->weights() : nullptr; }

  // After Outcome::stopped: "stopped at step 7 of 8 (SIGTERM)".
  const std::string& stop_text() const { return stop_text_; }

  // Measures the phases of all steps; null with profiling.phases=false, and on a GPU without kernels of ours.
  const PhaseClock* phases() const { return phases_.get(); }

  int64_t total_steps() const { return total_steps_; }
  int64_t step() const { return step_; }
  // Whether nothing is left for run(): neither steps nor the evaluation of the last one.
  bool finished() const;

 private:
  void train_step();
  void device_step();
  std::vector<at::Tensor> captured_inputs() const;
  void report_step(const at::Tensor& loss, const at::Tensor& nonfinite, at::Tensor& extra);
  void watch_step(int64_t step, bool nonfinite, bool spike);
  void flip_bit();
  optim::Ema* ema() { return shards_ ? shards_->ema() : ema_.get(); }
  void alive(const char* doing);
  void visit_entries(StateVisitor& visitor);
  void visit_weights(StateVisitor& visitor);
  void set_clock(parallel::StepClock* clock);
  void pause_over(double start_s);
  void collect_metrics(bool wait);
  void collect_finished();
  void add_step(const AsyncReader::Entry& entry);
  void watch_speed(int64_t step, const double* values);
  void write_window(int64_t step);
  bool evaluate();
  bool any_stop_requested();
  bool stop_agreed() const;
  void check_replicas();
  void save();
  void save_if_best();
  void finish_saving(double patience_s);
  checkpoint::CheckpointMeta meta();
  void check_sources(const std::map<std::string, std::string>& info, const std::filesystem::path& checkpoint,
                     bool accept_change);
  Outcome stop(const std::string& why);
  void log_memory() const;
  [[noreturn]] void stop_diverged(int64_t step);
  bool logged(int64_t step) const;
  bool due(int64_t every, bool last) const;
  double lr_factor(int64_t step) const;

  const config::Config& config_;
  std::string config_json_;
  Runtime runtime_;
  tasks::Task& task_;
  std::filesystem::path run_dir_;
  std::shared_ptr<parallel::Comm> comm_;
  std::shared_ptr<const parallel::Mesh> mesh_;  // of comm_
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::Ema> ema_;  // of whole parameters
  std::unique_ptr<parallel::GradientReducer> reducer_;
  parallel::NamedCuts cuts_;                                  // of the task's weights
  std::unique_ptr<parallel::TensorGradients> cut_gradients_;  // with a tensor axis of several ranks
  std::unique_ptr<parallel::ParameterShards> shards_;         // with parallel.zero and several ranks; has the Ema then
  parallel::Watchdog* watchdog_ = nullptr;
  GpuHealth* gpu_health_ = nullptr;
  std::unique_ptr<LossScaler> scaler_;  // with fp16 alone
  std::unique_ptr<StepGuard> guard_;
  std::unique_ptr<EarlyStop> early_stop_;
  std::unique_ptr<MetricWindow> window_;  // registered
  std::unique_ptr<TraceWindow> traces_;
  std::unique_ptr<MemoryWindow> memory_window_;
  at::Tensor gradient_factor_;  // of failpoints alone: 0-dim float32 on the device
  RunLog log_;
  std::map<std::string, std::string> source_digests_;  // of the task; rank 0's
  double score_ = 0, best_score_ = 0;                  // of the last evaluation, of all before
  std::unique_ptr<RunCheckpoints> checkpoints_;        // where there is a run folder; gone before the log
  int64_t accumulation_ = 1;
  int64_t total_steps_ = 0;

  // State of the loop, registered.
  int64_t step_ = 0;
  int64_t last_eval_step_ = -1;
  int64_t rewinds_ = 0;  // with train.spike_action=rewind

  // Not state: scratch and clocks.
  int64_t num_task_sums_ = 0;
  // float64 on the device: enum Front of trainer_values.h, with several ranks the own time of each, then the task's
  // sums of this step, then enum Extra.
  at::Tensor step_values_;
  int64_t front_ = 0;                           // how many come before the sums
  at::Tensor metric_sums_;                      // the sums and the extra values
  at::Tensor stop_;                             // 0-dim float64 on the device: kStop of this rank
  bool stop_wanted_ = false;                    // this rank does
  bool stop_seen_ = false;                      // a step of which all know had such a rank
  bool parts_written_ = false;                  // all know that every rank's part of a checkpoint is on the disk
  at::Tensor lr_, skip_;                        // 0-dim float32 on the device
  std::unique_ptr<parallel::StepClock> clock_;  // null with one rank
  std::unique_ptr<PhaseClock> phases_;          // goes after the graphs, which mark it
  parallel::SlowRanks slow_ranks_;
  CapturedStep captured_;
  AsyncReader reader_;
  std::string stop_text_;
  int64_t last_saved_step_ = -1;
  int64_t nonfinite_in_a_row_ = 0;  // as far as the host knows
  int64_t spike_step_ = -1;
  bool prepared_ = false;    // prepare_checkpoints
  int64_t steps_made_ = 0;   // by this process
  double data_wait_ms_ = 0;  // since the process started
};

}  // namespace hrm::train

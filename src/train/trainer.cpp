#include "hrm/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/base/failpoint.h"
#include "hrm/base/log.h"
#include "hrm/ops/gemm_tuning.h"
#include "hrm/optim/clip.h"
#include "hrm/optim/groups.h"
#include "hrm/optim/schedules.h"
#include "hrm/runtime/memory.h"
#include "hrm/runtime/memory_history.h"
#include "hrm/runtime/nvtx.h"
#include "hrm/train/batch_split.h"
#include "hrm/train/eval_reporter.h"
#include "hrm/train/signals.h"
#include "train/early_stop.h"
#include "train/memory_window.h"
#include "train/metric_window.h"
#include "train/run_checkpoints.h"
#include "train/step_guard.h"
#include "train/trace_window.h"
#include "train/trainer_values.h"

namespace hrm::train {
namespace {

optim::OptimizerOptions optimizer_options(const config::OptimConfig& config) {
  return {.name = config.name,
          .beta1 = config.beta1,
          .beta2 = config.beta2,
          .eps = config.eps,
          .average_decay = config.ema,
          .momentum = config.momentum,
          .muon_scale = config.muon_scale,
          .muon_precision = config.muon_precision,
          .adamw_lr_ratio = config.name == config::OptimizerKind::muon ? config.adamw_lr / config.lr : 1};
}

optim::GroupOptions group_options(const config::OptimConfig& config, const tasks::Task& task) {
  return {.weight_decay = config.weight_decay,
          .rules = optim::parse_group_rules(config.groups),
          .defaults = task.group_defaults(),
          .muon = config.name == config::OptimizerKind::muon};
}

std::string stop_reason() {
  return stop_requested() ? stop_signal_name() : "another rank was asked to";
}

// Leaves an evaluation when a signal asks to stop.
struct Interrupted {};

// Which products were tuned, once the first step has met all of them.
void log_products() {
  const ops::GemmTuningReport report = ops::gemm_tuning_report();
  if (report.reused + report.timed + report.untimed > 0) log::info("products     ", ops::gemm_tuning_text());
}

}  // namespace

Trainer::~Trainer() {
  set_clock(nullptr);
}

void Trainer::set_clock(parallel::StepClock* clock) {
  comm_->set_clock(clock);
  for (const parallel::Axis axis : parallel::kAllAxes) mesh_->axis(axis).set_clock(clock, static_cast<int>(axis));
}

int64_t summed_values(int64_t ranks, int64_t task_sums) {
  return (ranks == 1 ? 1 : kOwn + ranks) + task_sums;
}

Trainer::Trainer(const config::Config& config, std::string config_json, const Runtime& runtime, tasks::Task& task,
                 std::filesystem::path run_dir, std::shared_ptr<parallel::Comm> comm,
                 std::shared_ptr<const parallel::Mesh> mesh)
    : config_(config),
      config_json_(std::move(config_json)),
      runtime_(runtime),
      task_(task),
      run_dir_(std::move(run_dir)),
      comm_(comm ? std::move(comm) : parallel::make_single_comm()),
      mesh_(mesh ? std::move(mesh) : std::make_shared<parallel::Mesh>(comm_, parallel::MeshShape{})),
      log_(comm_->main() ? run_dir_ : std::filesystem::path()),
      slow_ranks_(comm_->ranks()),
      captured_({.name = "training step",
                 .device = runtime.device,
                 .enabled = config.runtime.cuda_graphs,
                 .warmup = config.runtime.graph_warmup_steps,
                 .refusal = task.why_not_captured()}) {
  using parallel::Axis;
  parallel::Comm &data = mesh_->axis(Axis::data), &tensor = mesh_->axis(Axis::tensor);
  accumulation_ = split_batch(config.train, data.ranks()).accumulation;
  total_steps_ = tasks::planned_steps(config.train, task);
  nn::ParameterSet& parameters = task.parameters();
  // Without ZeRO every rank has the whole state, and there are no groups.
  parallel::Comm& shard = config.parallel.zero > 0 ? mesh_->axis(Axis::shard) : data;
  reducer_ = std::make_unique<parallel::GradientReducer>(parameters, shard, parallel::reducer_options(config.parallel),
                                                         &mesh_->axis(Axis::replica));
  cuts_ = task.cut_weights();
  optim::ParameterGroup group;
  if (reducer_->layout() != nullptr) {
    shards_ = std::make_unique<parallel::ParameterShards>(parameters, shard, *reducer_, config.optim.ema,
                                                          optim::moment_names(config.optim.name));
    group = shards_->group(config.optim.weight_decay);
    if (!tensor.alone()) {
      cut_gradients_ = std::make_unique<parallel::TensorGradients>(shards_->gradients(), shards_->held_alike(), tensor);
    }
  } else {
    if (!tensor.alone()) cut_gradients_ = std::make_unique<parallel::TensorGradients>(parameters, tensor);
    if (config.optim.ema > 0) ema_ = std::make_unique<optim::Ema>(parameters, config.optim.ema);
    group = optim::group_of(parameters, config.optim.weight_decay, ema_.get());
  }
  optimizer_ = optim::make_optimizer(optimizer_options(config.optim),
                                     optim::make_groups(parameters, group, group_options(config.optim, task)));

  if (runtime.precision.loss_scaling) {
    scaler_ = std::make_unique<LossScaler>(config.precision.loss_scale, config.precision.loss_scale_growth_interval,
                                           runtime.device);
  }
  guard_ = std::make_unique<StepGuard>(config.train, runtime.device);
  if (failpoint::armed()) gradient_factor_ = at::ones({}, at::device(runtime.device).dtype(at::kFloat));
  num_task_sums_ = static_cast<int64_t>(task.metric_names().size());
  const int64_t sums = num_task_sums_ + (scaler_ ? kExtrasScaled : kExtras);
  const auto on_device = at::TensorOptions().device(runtime.device);
  front_ = summed_values(comm_->ranks(), 0);
  step_values_ = at::zeros({front_ + sums}, on_device.dtype(at::kDouble));
  metric_sums_ = step_values_.narrow(0, front_, sums);
  // Without kernels of ours for this GPU there is none to read its clock.
  if (!comm_->alone() && (runtime.device.is_cpu() || runtime.own_kernels)) {
    clock_ = std::make_unique<parallel::StepClock>(runtime.device, parallel::kAxes);
    set_clock(clock_.get());
  }
  if (config.profiling.phases && (runtime.device.is_cpu() || runtime.own_kernels)) {
    phases_ = std::make_unique<PhaseClock>(runtime.device);
  }
  if (!mesh_->place().plain()) {
    std::vector<std::string> axes;
    for (const Axis axis : parallel::kAllAxes) axes.emplace_back(parallel::axis_name(axis));
    slow_ranks_.set_mesh([place = mesh_->place()](int rank) { return place.of(rank).describe(); }, std::move(axes));
  }
  stop_ = at::zeros({}, on_device.dtype(at::kDouble));
  window_ = std::make_unique<MetricWindow>(num_task_sums_, sums - num_task_sums_, !comm_->alone(),
                                           task.has_switched_metrics());
  TraceInfo rank;
  rank.rank = comm_->rank();
  rank.ranks = comm_->ranks();
  if (!comm_->alone()) rank.backend = runtime.device.is_cuda() ? "nccl" : "gloo";
  traces_ = std::make_unique<TraceWindow>(config.profiling, runtime.device,
                                          run_dir_ / "traces" / cat("trace_rank_", comm_->rank(), ".json.gz"), rank);
  const auto of_rank = [&](const char* name) {
    return run_dir_ / (comm_->main() ? cat(name, ".pickle") : cat(name, "_rank_", comm_->rank(), ".pickle"));
  };
  memory_window_ = std::make_unique<MemoryWindow>(config.profiling, runtime.device, of_rank("memory"));
  if (!run_dir_.empty()) watch_out_of_memory(runtime.device, of_rank("out_of_memory"));
  early_stop_ = std::make_unique<EarlyStop>(config.train);
  lr_ = at::zeros({}, on_device.dtype(at::kFloat));
  skip_ = at::zeros({}, on_device.dtype(at::kFloat));
}

Outcome Trainer::run() {
  prepare_checkpoints();
  const double start = now_seconds();
  window_->start(start);
  // A stop between a step and its evaluation, or in the middle of that, leaves the evaluation to us. Saved at once, so
  // that no later start makes it again.
  if (step_ > 0 && due(config_.train.eval_every, step_ == total_steps_)) {
    if (!evaluate()) return stop(stop_reason());
    save();
  }
  bool first = true;
  while (step_ < total_steps_ && !early_stop_->over()) {
    if (!traces_->before_step(step_ + 1)) return stop("the steps for Nsight are done");
    memory_window_->before_step();
    train_step();
    if (memory_table_requested()) log_memory();
    if (std::exchange(first, false)) log_products();
    const bool last = step_ == total_steps_;
    if (last) {
      collect_metrics(/*wait=*/true);
    } else {
      collect_finished();
    }
    if (std::exchange(parts_written_, false)) checkpoints_->commit_if_written();
    if (spike_step_ >= 0) {
      finish_saving(kPatienceAtStop);
      return Outcome::rewind;
    }
    const bool out_of_time = config_.train.max_seconds > 0 && now_seconds() - start > config_.train.max_seconds;
    stop_wanted_ = stop_requested() || out_of_time;
    if (!last && stop_agreed()) {
      return stop(out_of_time && !stop_requested() ? "train.max_seconds" : stop_reason());
    }
    if (due(config_.parallel.check_replicas_every, /*last=*/false)) check_replicas();
    if (due(config_.train.eval_every, last)) {
      if (!evaluate()) return stop(stop_reason());
      save_if_best();
      if (early_stop_->over()) save();
    }
    if (due(config_.train.checkpoint_every, last)) save();
  }
  finish_saving(kPatienceAtEnd);
  traces_->finish();
  memory_window_->finish();
  log::progress_done();
  if (early_stop_->over()) {
    log::info("ended at step ", step_, " of ", total_steps_, ": the last ", early_stop_->in_a_row(),
              " evaluations were no better than the best before (train.early_stop_evals)");
  }
  log_memory();
  return Outcome::finished;
}

void Trainer::log_memory() const {
  log::info("memory       ", memory_text(memory_report(runtime_.device)));
  const std::string pools = memory_pools_text(runtime_.device);
  if (!pools.empty()) log::info("pools        ", pools);
}

// Saves before anything else: the scheduler that sent the signal may grant seconds only.
Outcome Trainer::stop(const std::string& why) {
  save();
  finish_saving(kPatienceAtStop);
  traces_->finish();
  memory_window_->finish();
  log::progress_done();
  stop_text_ = cat("stopped at step ", step_, " of ", total_steps_, " (", why, ")");
  log::info(stop_text_, "; start it again to resume");
  return Outcome::stopped;
}

void Trainer::run_steps(int64_t count) {
  if (steps_made_ == 0) window_->start(now_seconds());
  for (int64_t i = 0; i < count; ++i) {
    train_step();
    collect_metrics(/*wait=*/false);
  }
}

bool Trainer::run_repeated(int64_t repeats, int64_t count) {
  // One number longer than the keys of steps.
  const CapturedStep::Key shape{config_.train.global_batch_size, accumulation_, task_.graph_key(), repeats};
  const PhaseClock::Scope measured(phases_.get());
  for (int64_t i = 0; i < count; ++i) {
    captured_.run(shape, captured_inputs(), [&] {
      for (int64_t step = 0; step < repeats; ++step) device_step();
    });
  }
  return captured_.captured(shape);
}

// One optimizer step. Nothing here waits for the device: metrics travel to the host on their own (collect_metrics).
void Trainer::train_step() {
  failpoint::hit(Failpoint::step_begin);
  const ProfilerRange range(RangeKind::step, "train.step");
  const PhaseClock::Scope measured(phases_.get());
  if (phases_ && steps_made_ == 0) phases_->begin();
  // The first ones also read data, choose algorithms and capture: no step's time limit holds for them.
  alive(steps_made_++ < config_.runtime.graph_warmup_steps + 2 ? "first steps" : "step");
  const int64_t step = step_ + 1;  // the schedule, the samples and the draws of this step are numbered from 1
  const double factor = lr_factor(step);
  if (task_.waits_for_device(step)) collect_metrics(/*wait=*/true);
  {
    const ProfilerRange data(RangeKind::data, "data.next_batch");
    const double waited = task_.load_batch(step, factor);
    window_->add_data_wait(waited);
    data_wait_ms_ += waited;
  }
  task_.prepare_step(step);
  lr_.fill_(config_.optim.lr * factor);
  if (!comm_->alone()) {
    const bool written = checkpoints_ && checkpoints_->part_written();
    stop_.fill_((stop_wanted_ ? 1 : 0) + (written ? kPartWritten : 0));
  }

  if (gradient_factor_.defined()) {
    const failpoint::Action action = failpoint::hit(Failpoint::step_gradient);
    gradient_factor_.fill_(action == failpoint::Action::nan ? NAN : action == failpoint::Action::spike ? 1000 : 1);
  }

  const CapturedStep::Key shape{config_.train.global_batch_size, accumulation_, task_.graph_key()};
  const std::vector<at::Tensor> inputs = captured_inputs();
  if (captured_.captured(shape)) {
    const ProfilerRange replay(RangeKind::step, "train.graph_replay");
    captured_.run(shape, inputs, {});
  } else {
    if (!task_.forms_return()) captured_.forget_others(shape);
    captured_.run(shape, inputs, [this] {
      try {
        device_step();
      } catch (...) {
        reducer_->abandon();  // of a capture that fails the step is made once more, eagerly
        if (shards_) shards_->begin_pass();
        throw;
      }
    });
  }
  task_.finish_step();
  if (phases_ && logged(step)) phases_->read(step);
  reader_.push(step, step_values_);
  window_->queued(step, now_seconds());
  step_ = step;
  if (failpoint::hit(Failpoint::step_end) == failpoint::Action::flip) flip_bit();
}

// As a fault of the memory does, in the first weight of which every rank has all.
void Trainer::flip_bit() {
  const at::NoGradGuard no_grad;
  const StateListing state = list_state(*this);
  const auto whole = std::find_if(state.tensors.begin(), state.tensors.end(), [](const TensorEntry& entry) {
    return entry.role == StateRole::weight && !entry.part.split;
  });
  whole->tensor.view(-1).narrow(0, 0, 1).view(at::kInt).bitwise_xor_(1 << 20);
}

// What the host refills before each step.
std::vector<at::Tensor> Trainer::captured_inputs() const {
  std::vector<at::Tensor> inputs = task_.step_inputs();
  inputs.push_back(lr_);
  inputs.push_back(stop_);
  if (gradient_factor_.defined()) inputs.push_back(gradient_factor_);
  return inputs;
}

// The device's part of a step, once captured never called again: it reads nothing from the host that changes.
void Trainer::device_step() {
  nn::ParameterSet& parameters = task_.parameters();
  if (shards_) shards_->begin_pass();
  // Since the step before: copies of the batch, and waiting for the host.
  if (phases_) phases_->end(Phase::data);
  {
    const PhaseRange range(Phase::zero_grad);
    reducer_->clear();
    step_values_.zero_();
    if (!comm_->alone()) {
      step_values_.select(0, kStop).copy_(stop_);
      if (clock_) {
        clock_->begin_step(step_values_.select(0, kOwn + comm_->rank()),
                           step_values_.narrow(0, kWaited, 1 + parallel::kAxes));
      }
    }
  }
  const at::Tensor scale = scaler_ ? scaler_->scale() : at::Tensor();
  // A failpoint corrupts the gradient of this rank where it comes into being.
  const at::Tensor factor = !gradient_factor_.defined() ? scale : scaler_ ? scale * gradient_factor_ : gradient_factor_;
  at::Tensor task_sums = metric_sums_.narrow(0, 0, num_task_sums_);
  for (int64_t micro = 0; micro < accumulation_; ++micro) {
    reducer_->begin(/*last_micro_batch=*/micro + 1 == accumulation_);
    task_.forward_backward(micro, factor, task_sums);
  }
  parameters.settle_gradients();
  if (gradient_factor_.defined()) task_sums.mul_(gradient_factor_);
  if (!mesh_->speaks()) task_sums.zero_();  // another rank has the same
  {
    // What follows sees the gradient of the global batch, the same bits on every rank.
    const PhaseRange range(Phase::all_reduce);
    std::unique_ptr<parallel::Pending> sums;
    if (!comm_->alone()) {
      sums = comm_->start_all_reduce(step_values_.narrow(0, 0, summed_values(comm_->ranks(), num_task_sums_)),
                                     parallel::Reduction::sum);
    }
    reducer_->finish();
    if (cut_gradients_) cut_gradients_->sum();
    if (sums) sums->wait();  // behind gradients that were waited for
  }

  at::Tensor extra = metric_sums_.narrow(0, num_task_sums_, metric_sums_.numel() - num_task_sums_);
  optim::GradNorm norm;
  at::Tensor loss;
  {
    const PhaseRange range(Phase::grad_clip);
    loss = task_.step_loss(task_sums);
    // Once a step gives up, every later one is skipped too, until the host has noticed and stops. So the weights in the
    // dump are those before the bad steps.
    skip_.copy_(guard_->skip(loss));
    if (scaler_) skip_.copy_(at::maximum(skip_, scaler_->hopeless()));
    const optim::GradNormExtras extras{.loss_scale = scale, .skip = skip_, .report = extra.narrow(0, kNormRaw, 3)};
    const double most = config_.optim.grad_clip;
    norm = shards_          ? shards_->global_norm(most, extras, cut_gradients_.get())
           : cut_gradients_ ? cut_gradients_->global_norm(most, extras)
                            : optim::global_norm(parameters.flat_grad(), most, 2, extras);
  }
  {
    const PhaseRange range(Phase::optimizer_step);
    // Averages and compute copies follow the weights in the same pass; with shards the copies when all have arrived.
    const at::Tensor ratio = extra.select(0, kUpdateRatio);
    if (shards_) {
      shards_->step(*optimizer_, lr_, norm.coef, skip_, ratio, cut_gradients_.get());
    } else if (cut_gradients_) {
      cut_gradients_->step(*optimizer_, lr_, norm.coef, skip_, ratio);
    } else {
      optimizer_->step(lr_, norm.coef, skip_, ratio);
      parameters.refresh_fake_quantized();
    }
    task_.update_extra(skip_);
  }
  const PhaseRange range(Phase::report);
  report_step(loss, norm.nonfinite, extra);
}

// After work that belongs to no step and began at `start_s`.
void Trainer::pause_over(double start_s) {
  window_->add_pause(now_seconds() - start_s);
  if (phases_) phases_->begin();
}

void Trainer::alive(const char* doing) {
  if (watchdog_ != nullptr) watchdog_->at(step_, doing);
}

// What became of the step. One that was left out for its gradient has neither norm nor metrics.
void Trainer::report_step(const at::Tensor& loss, const at::Tensor& nonfinite, at::Tensor& extra) {
  at::Tensor give_up;
  if (scaler_) {
    // An overflow of the scaled loss does not concern the training: the scale adapts.
    extra.select(0, kLossScale).copy_(scaler_->scale());
    scaler_->update(nonfinite);
    guard_->update(loss, at::zeros_like(nonfinite));
    give_up = scaler_->hopeless();
  } else {
    guard_->update(loss, nonfinite);
    give_up = guard_->give_up();
  }
  extra.select(0, kNonFinite).copy_(nonfinite);
  extra.select(0, kSpike).copy_(guard_->spike());
  extra.select(0, kGiveUp).copy_(give_up);
  extra.narrow(0, kNormRaw, 2).nan_to_num_(0, 0, 0);
}

void Trainer::start_fresh() {
  task_.parameters().refresh_compute();
  if (ema()) ema()->reset();
  log_.truncate_after(0);
}

double Trainer::lr_factor(int64_t step) const {
  const config::OptimConfig& c = config_.optim;
  return optim::scheduled(c.schedule, 1.0, step, total_steps_, c.warmup_steps, c.min_ratio,
                          {.stable = c.wsd_stable_steps, .decay = c.wsd_decay_steps, .shape = c.wsd_shape});
}

bool Trainer::logged(int64_t step) const {
  return step % config_.train.log_every == 0 || step == total_steps_;
}

bool Trainer::finished() const {
  return early_stop_->over() || step_ > total_steps_ ||
         (step_ == total_steps_ && (last_eval_step_ == step_ || !task_.can_evaluate()));
}

bool Trainer::due(int64_t every, bool last) const {
  return last || (every > 0 && step_ % every == 0);
}

// Whether to stop after this step: all ranks give the same answer.
bool Trainer::stop_agreed() const {
  return comm_->alone() ? stop_wanted_ : stop_seen_;
}

// The same for moments at which all ranks come together anyway.
bool Trainer::any_stop_requested() {
  if (comm_->alone()) return stop_requested();
  const at::Tensor wanted = at::full({1}, stop_requested() ? 1 : 0, at::kLong);
  comm_->all_reduce(wanted, parallel::Reduction::max);
  return wanted.item<int64_t>() != 0;
}

// Once per step. False when a signal asked to stop meanwhile: then nothing is logged, and the evaluation is still due.
bool Trainer::evaluate() {
  if (!task_.can_evaluate() || last_eval_step_ == step_) return true;
  alive("evaluation");
  failpoint::hit(Failpoint::evaluation_begin);
  collect_metrics(/*wait=*/true);
  if (checkpoints_) checkpoints_->commit_if_written();  // it takes longer than the steps that would see to it
  const double start = now_seconds();
  const config::EvalWeights which = config_.eval.weights;
  require(ema() || which != config::EvalWeights::ema, ExitCode::usage,
          "eval.weights is 'ema', but optim.ema is 0: there is no average to evaluate");
  const bool with_ema = ema() && which != config::EvalWeights::raw;
  std::vector<std::pair<std::string, tasks::NamedValues>> results;  // by prefix
  std::vector<double> eval_ms;                                      // of each result: of its batches
  // False when a signal asked to stop meanwhile, on all ranks.
  const auto run_one = [&](const std::string& prefix) {
    EvalReporter reporter;
    const PhaseClock::Scope measured(phases_.get());
    const PhaseTimes before = phases_ ? phases_->totals() : PhaseTimes();
    if (phases_) phases_->begin();
    if (shards_) shards_->begin_pass();  // a replayed step leaves no note of what it fetched
    try {
      results.emplace_back(prefix, task_.evaluate([&](const tasks::EvalProgress& progress) {
        alive("evaluation");
        failpoint::hit(Failpoint::evaluation_batch);
        if (progress.done < progress.total && any_stop_requested()) throw Interrupted();
        if (comm_->main()) reporter.report(progress);
      }));
    } catch (const Interrupted&) {
      return false;
    }
    const auto ms = [](const PhaseTimes& times) {
      return tasks::find_value(times, phase_name(Phase::eval_batch)).value_or(0);
    };
    eval_ms.push_back(phases_ ? ms(phases_->totals()) - ms(before) : 0);
    return true;
  };
  if (with_ema) {
    std::function<void()> share;
    if (shards_) share = [this] { shards_->gather(); };
    optim::EmaSwap swap(*ema(), task_.parameters(), share);
    const bool whole = run_one("eval");
    swap.undo();
    if (!whole) return false;
  }
  if (!with_ema && !run_one("eval")) return false;
  if (with_ema && which == config::EvalWeights::both && !run_one("eval_raw")) return false;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& [prefix, result] = results[i];
    std::vector<std::pair<std::string, double>> line;
    for (const auto& [key, value] : result) line.emplace_back(prefix + "/" + key, value);
    if (eval_ms[i] > 0) line.emplace_back(cat("perf/phase/", phase_name(Phase::eval_batch), "_ms"), eval_ms[i]);
    log_.write(step_, line);
    log::info("step ", step_, " evaluation", prefix == "eval_raw" ? " (raw weights)" : "", ": ",
              task_.eval_text(result));
  }
  score_ = task_.score(results.front().second);
  early_stop_->add(score_);
  last_eval_step_ = step_;
  last_saved_step_ = -1;  // a checkpoint of before knows nothing of the evaluation
  pause_over(start);
  return true;
}

}  // namespace hrm::train

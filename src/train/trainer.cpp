#include "hrm/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "hrm/base/error.h"
#include "hrm/base/failpoint.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/ops/gemm_tuning.h"
#include "hrm/optim/clip.h"
#include "hrm/optim/groups.h"
#include "hrm/optim/schedules.h"
#include "hrm/parallel/gathered_state.h"
#include "hrm/runtime/memory.h"
#include "hrm/runtime/nvtx.h"
#include "hrm/train/batch_split.h"
#include "hrm/train/eval_reporter.h"
#include "hrm/train/signals.h"
#include "train/early_stop.h"
#include "train/step_guard.h"

namespace hrm::train {
namespace {

// Values behind the task's own sums in the vector that travels to the host each step; the first three as
// optim::GradNormExtras reports them. The last one only where the loss is scaled.
enum Extra : int64_t {
  kNormRaw = 0,
  kNormClipped = 1,
  kSkipped = 2,  // the update was left out
  kUpdateRatio = 3,
  kNonFinite = 4,  // because the gradient was not finite
  kSpike = 5,      // because the loss was a spike
  kGiveUp = 6,     // and all that follow will be
  kLossScale = 7,
};
constexpr int64_t kExtras = 7, kExtrasScaled = 8;

// Values before the task's sums. Behind kWaited, of several ranks, each rank's own time in the step before.
enum Front : int64_t {
  kStop = 0,    // how many ranks want to stop
  kWaited = 1,  // ms that the ranks waited for each other in the step before, in all; only of several
  kOwn = 2,
};
// With several ranks the host reads a step's values so many steps later: never sooner, so that all ranks draw the same
// conclusions from them (to stop, to give up) after the same step.
constexpr size_t kAgreementLag = 2;  // less than queued_at_ has room for

int64_t planned_steps(const config::TrainConfig& config, const tasks::Task& task) {
  if (config.steps > 0) return config.steps;
  // In this order of operations, as the official trainer rounds.
  const auto steps =
      static_cast<int64_t>(config.epochs * task.samples_per_epoch() / static_cast<double>(config.global_batch_size));
  require(steps > 0, ExitCode::usage, "train.epochs = ", config.epochs, " is less than one step of ",
          config.global_batch_size, " samples; set train.steps or more epochs");
  return steps;
}

optim::OptimizerOptions optimizer_options(const config::OptimConfig& config) {
  return {.name = config.name,
          .beta1 = config.beta1,
          .beta2 = config.beta2,
          .eps = config.eps,
          .average_decay = config.ema,
          .momentum = config.momentum,
          .muon_scale = config.muon_scale,
          .muon_precision = config.muon_precision,
          .adamw_lr_ratio = config.name == "muon" ? config.adamw_lr / config.lr : 1};
}

optim::GroupOptions group_options(const config::OptimConfig& config, const tasks::Task& task) {
  return {.weight_decay = config.weight_decay,
          .rules = optim::parse_group_rules(config.groups),
          .defaults = task.group_defaults(),
          .muon = config.name == "muon"};
}

std::string stop_reason() {
  return stop_requested() ? stop_signal_name() : "another rank was asked to";
}

// Leaves an evaluation when a signal asks to stop.
struct Interrupted {};

constexpr int64_t kMostRewinds = 3;

constexpr double kPatienceAtEnd = 30, kPatienceAtStop = 15;  // s, for a last checkpoint that cannot be written

// Metrics since the last logged line. Earlier versions kept fewer of them, under the second name: that window is
// dropped, so that the first line after such a resume is of the steps since.
constexpr const char *kOpenWindow = "loop.open_window.", *kOpenWindowOfOld = "loop.window_";

constexpr const char* kDigest = "digest of the ";  // in a checkpoint's information, before what it is of
constexpr const char* kNextBatch = "digest of the next batch";

checkpoint::Keep keep_of(const config::TrainConfig& config) {
  return {config.keep_checkpoints, config.keep_every, config.keep_best};
}

// Which products were tuned, once the first step has met all of them.
void log_products() {
  const ops::GemmTuningReport report = ops::gemm_tuning_report();
  if (report.reused + report.timed + report.untimed > 0) log::info("products     ", ops::gemm_tuning_text());
}

}  // namespace

Trainer::~Trainer() {
  comm_->set_clock(nullptr);
}

int64_t summed_values(int64_t ranks, int64_t task_sums) {
  return (ranks == 1 ? 1 : kOwn + ranks) + task_sums;
}

Trainer::Trainer(const config::Config& config, std::string config_json, const Runtime& runtime, tasks::Task& task,
                 std::filesystem::path run_dir, std::shared_ptr<parallel::Comm> comm)
    : config_(config),
      config_json_(std::move(config_json)),
      runtime_(runtime),
      task_(task),
      run_dir_(std::move(run_dir)),
      comm_(comm ? std::move(comm) : parallel::make_single_comm()),
      log_(comm_->main() ? run_dir_ : std::filesystem::path()),
      slow_ranks_(comm_->ranks()),
      captured_({.name = "training step",
                 .device = runtime.device,
                 .enabled = config.runtime.cuda_graphs,
                 .warmup = config.runtime.graph_warmup_steps,
                 .refusal = task.why_not_captured()}) {
  accumulation_ = split_batch(config.train, comm_->ranks()).accumulation;
  total_steps_ = planned_steps(config.train, task);
  nn::ParameterSet& parameters = task.parameters();
  reducer_ =
      std::make_unique<parallel::GradientReducer>(parameters, *comm_, parallel::reducer_options(config.parallel));
  optim::ParameterGroup group;
  if (reducer_->layout() != nullptr) {
    shards_ = std::make_unique<parallel::ParameterShards>(parameters, *comm_, *reducer_, config.optim.ema,
                                                          optim::moment_names(config.optim.name));
    group = shards_->group(config.optim.weight_decay);
  } else {
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
    clock_ = std::make_unique<parallel::StepClock>(runtime.device);
    comm_->set_clock(clock_.get());
  }
  stop_ = at::zeros({}, on_device.dtype(at::kDouble));
  window_sums_ = at::zeros({sums}, at::kDouble);
  early_stop_ = std::make_unique<EarlyStop>(config.train);
  lr_ = at::zeros({}, on_device.dtype(at::kFloat));
  skip_ = at::zeros({}, on_device.dtype(at::kFloat));
}

void Trainer::prepare_checkpoints() {
  if (run_dir_.empty() || std::exchange(prepared_, true)) return;
  best_score_ = -std::numeric_limits<double>::infinity();
  std::string best;
  if (comm_->main()) {
    const checkpoint::Keep keep = keep_of(config_.train);
    auto whole = parallel::GatheredState::room_for(*this);
    const StateListing listing = list_state(whole);
    const uint64_t bytes = checkpoint::checkpoint_bytes(listing);
    const uint64_t free = checkpoint::check_volume(run_dir_, bytes, keep);
    log::info("checkpoints  ", human_bytes(bytes), " each, ", human_bytes(free), " free");
    source_digests_ = task_.source_digests();
    saver_ = std::make_unique<checkpoint::Saver>(
        run_dir_,
        checkpoint::SaverOptions{
            .keep = keep, .asynchronous = config_.train.async_checkpoints, .before_commit = [this] { log_.sync(); }});
    if (config_.train.checkpoint_every > 0) saver_->prepare(listing);
    best = cat(std::hexfloat, checkpoint::best_score(run_dir_).value_or(best_score_));
  }
  // As rank 0 sees the folder.
  best = comm_->all_gather_text(best)[0];
  best_score_ = std::strtod(best.c_str(), nullptr);
}

Outcome Trainer::run() {
  prepare_checkpoints();
  window_start_ = now_seconds();
  const double start = window_start_;
  // A stop between a step and its evaluation, or in the middle of that, leaves the evaluation to us. Saved at once, so
  // that no later start makes it again.
  if (step_ > 0 && due(config_.train.eval_every, step_ == total_steps_)) {
    if (!evaluate()) return stop(stop_reason());
    save();
  }
  bool first = true;
  while (step_ < total_steps_ && !early_stop_->over()) {
    if (!trace_steps()) return stop("the steps for Nsight are done");
    train_step();
    if (std::exchange(first, false)) log_products();
    const bool last = step_ == total_steps_;
    if (last) {
      collect_metrics(/*wait=*/true);
    } else {
      collect_finished();
    }
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
  finish_trace();
  log::progress_done();
  if (early_stop_->over()) {
    log::info("ended at step ", step_, " of ", total_steps_, ": the last ", early_stop_->in_a_row(),
              " evaluations were no better than the best before (train.early_stop_evals)");
  }
  log::info("memory       ", memory_text(memory_report(runtime_.device)));
  return Outcome::finished;
}

// Saves before anything else: the scheduler that sent the signal may grant seconds only.
Outcome Trainer::stop(const std::string& why) {
  save();
  finish_saving(kPatienceAtStop);
  finish_trace();
  log::progress_done();
  log::info("stopped at step ", step_, " of ", total_steps_, " (", why, "); start it again to go on");
  return Outcome::stopped;
}

void Trainer::run_steps(int64_t count) {
  if (process_steps_ == 0) window_start_ = now_seconds();
  for (int64_t i = 0; i < count; ++i, ++process_steps_) {
    train_step();
    collect_metrics(/*wait=*/false);
  }
}

// One optimizer step. Nothing here waits for the device: metrics travel to the host on their own (collect_metrics).
void Trainer::train_step() {
  failpoint::hit(Failpoint::step_begin);
  const ProfilerRange range(RangeKind::step, "train.step");
  // The first ones also read data, choose algorithms and capture: no step's time limit holds for them.
  alive(steps_made_++ < config_.runtime.graph_warmup_steps + 2 ? "first steps" : "step");
  const int64_t step = step_ + 1;  // the schedule, the samples and the draws of this step are numbered from 1
  const double factor = lr_factor(step);
  {
    const ProfilerRange data(RangeKind::data, "data.next_batch");
    const double waited = task_.load_batch(step, factor);
    window_wait_ms_ += waited;
    data_wait_ms_ += waited;
  }
  lr_.fill_(config_.optim.lr * factor);
  if (!comm_->alone()) stop_.fill_(stop_wanted_ ? 1 : 0);

  if (gradient_factor_.defined()) {
    const failpoint::Action action = failpoint::hit(Failpoint::step_gradient);
    gradient_factor_.fill_(action == failpoint::Action::nan ? NAN : action == failpoint::Action::spike ? 1000 : 1);
  }

  const CapturedStep::Key shape{config_.train.global_batch_size, accumulation_, task_.step_form()};
  std::vector<at::Tensor> inputs = task_.step_inputs();
  inputs.push_back(lr_);
  inputs.push_back(stop_);
  if (gradient_factor_.defined()) inputs.push_back(gradient_factor_);
  if (captured_.captured(shape)) {
    const ProfilerRange replay(RangeKind::step, "train.graph_replay");
    captured_.run(shape, inputs, {});
  } else {
    captured_.run(shape, inputs, [this] {
      try {
        device_step();
      } catch (...) {
        reducer_->abandon();  // of a capture that fails the step is made once more, eagerly
        throw;
      }
    });
  }
  task_.finish_step();
  reader_.push(step, step_values_);
  queued_at_[static_cast<size_t>(step % 4)] = now_seconds();
  step_ = step;
  if (failpoint::hit(Failpoint::step_end) == failpoint::Action::flip) flip_bit();
}

// As a fault of the memory does, in the first weight.
void Trainer::flip_bit() {
  const at::NoGradGuard no_grad;
  at::Tensor first = list_state(task_).tensors.front().tensor.view(-1).narrow(0, 0, 1);
  first.view(at::kInt).bitwise_xor_(1 << 20);
}

// The device's part of a step, once captured never called again: it reads nothing from the host that changes.
void Trainer::device_step() {
  nn::ParameterSet& parameters = task_.parameters();
  {
    const ProfilerRange range(RangeKind::step, "optimizer.zero_grad");
    reducer_->clear();
    step_values_.zero_();
    if (!comm_->alone()) {
      step_values_.select(0, kStop).copy_(stop_);
      if (clock_) clock_->begin_step(step_values_.select(0, kOwn + comm_->rank()), step_values_.select(0, kWaited));
    }
  }
  const at::Tensor scale = scaler_ ? scaler_->scale() : at::Tensor();
  // A failpoint spoils the gradient of this rank where it comes into being.
  const at::Tensor factor = !gradient_factor_.defined() ? scale : scaler_ ? scale * gradient_factor_ : gradient_factor_;
  at::Tensor task_sums = metric_sums_.narrow(0, 0, num_task_sums_);
  for (int64_t micro = 0; micro < accumulation_; ++micro) {
    reducer_->begin(/*last_micro_batch=*/micro + 1 == accumulation_);
    task_.forward_backward(micro, factor, task_sums);
  }
  parameters.settle_gradients();
  if (gradient_factor_.defined()) task_sums.mul_(gradient_factor_);
  {
    // What follows sees the gradient of the global batch, the same bits on every rank.
    const ProfilerRange range(RangeKind::step, "all_reduce");
    std::unique_ptr<parallel::Pending> sums;
    if (!comm_->alone()) {
      sums = comm_->start_all_reduce(step_values_.narrow(0, 0, summed_values(comm_->ranks(), num_task_sums_)),
                                     parallel::Reduction::sum);
    }
    reducer_->finish();
    if (sums) sums->wait();  // behind gradients that were waited for
  }

  at::Tensor extra = metric_sums_.narrow(0, num_task_sums_, metric_sums_.numel() - num_task_sums_);
  optim::GradNorm norm;
  at::Tensor loss;
  {
    const ProfilerRange range(RangeKind::step, "grad_clip");
    loss = task_.step_loss(task_sums);
    // Once a step gives up, every later one is left out too, until the host has noticed and stops: the weights in the
    // dump are those before the bad steps.
    skip_.copy_(guard_->skip(loss));
    if (scaler_) skip_.copy_(at::maximum(skip_, scaler_->hopeless()));
    const optim::GradNormExtras extras{.loss_scale = scale, .skip = skip_, .report = extra.narrow(0, kNormRaw, 3)};
    norm = shards_ ? shards_->global_norm(config_.optim.grad_clip, extras)
                   : optim::global_norm(parameters.flat_grad(), config_.optim.grad_clip, 2, extras);
  }
  {
    const ProfilerRange range(RangeKind::step, "optimizer.step");
    // Averages and compute copies follow the weights in the same pass; with shards the copies when all have arrived.
    const at::Tensor ratio = extra.select(0, kUpdateRatio);
    if (shards_) {
      shards_->step(*optimizer_, lr_, norm.coef, skip_, ratio);
    } else {
      optimizer_->step(lr_, norm.coef, skip_, ratio);
    }
    task_.update_extra(skip_);
  }
  report_step(loss, norm.nonfinite, extra);
}

void Trainer::alive(const char* doing) {
  if (watchdog_ != nullptr) watchdog_->at(step_, doing);
}

// What became of the step. One that was left out for its gradient has neither norm nor metrics.
void Trainer::report_step(const at::Tensor& loss, const at::Tensor& nonfinite, at::Tensor& extra) {
  at::Tensor give_up;
  if (scaler_) {
    // An overflow of the scaled loss is none of the training: the scale adapts.
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

// Adds the finished steps to the open window and writes it when it is full.
void Trainer::collect_metrics(bool wait) {
  while (auto entry = reader_.pop(wait)) add_step(*entry);
}

// Those that can be had without waiting; of several ranks the same on all.
void Trainer::collect_finished() {
  if (comm_->alone()) return collect_metrics(/*wait=*/false);
  while (reader_.pending() > kAgreementLag) add_step(*reader_.pop(/*wait=*/true));
}

void Trainer::add_step(const AsyncReader::Entry& entry) {
  auto sums = window_sums_.accessor<double, 1>();
  const double* values = entry.values.data() + front_;
  stop_seen_ = stop_seen_ || entry.values[kStop] != 0;
  if (!comm_->alone()) {
    window_comm_ms_ += entry.values[kWaited];
    watch_speed(entry.tag, entry.values.data() + kOwn);
  }
  const double* extra = values + num_task_sums_;
  const bool nonfinite = extra[kNonFinite] != 0;
  if (extra[kGiveUp] != 0 || (nonfinite && !scaler_ && entry.tag == total_steps_)) stop_diverged(entry.tag);
  watch_step(entry.tag, nonfinite, extra[kSpike] != 0);
  // The metrics of a step whose loss was not finite are no numbers; that it was left out is one.
  const bool whole = std::all_of(values, extra, [](double value) { return std::isfinite(value); });
  for (int64_t i = whole ? 0 : num_task_sums_; i < sums.size(0); ++i) sums[i] += values[i];
  window_steps_ += whole;
  if (logged(entry.tag)) write_window(entry.tag);
}

void Trainer::watch_step(int64_t step, bool nonfinite, bool spike) {
  nonfinite_in_a_row_ = nonfinite ? nonfinite_in_a_row_ + 1 : 0;
  if (!comm_->main()) spike = spike && config_.train.spike_action == "rewind";
  if (nonfinite && !scaler_ && comm_->main()) {
    log::warn("step ", step, ": the gradient is not finite; its update was left out (", nonfinite_in_a_row_, " of ",
              config_.train.max_nonfinite_steps, " in a row, train.max_nonfinite_steps)");
  }
  if (!spike) return;
  if (comm_->main()) log::warn("step ", step, ": the loss is a spike (train.spike_score); its update was left out");
  if (config_.train.spike_action == "rewind" && rewinds_ < kMostRewinds && spike_step_ < 0) spike_step_ = step;
}

// What is read with a step is of the one before; with it come evaluations and checkpoints that lay between the two.
void Trainer::watch_speed(int64_t step, const double* own_ms) {
  if (step - 1 == last_eval_step_ || step - 1 == last_saved_step_) return;
  const std::string slow = slow_ranks_.add(own_ms);
  if (!slow.empty() && comm_->main()) log::warn("step ", step, ": ", slow);
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

void Trainer::write_window(int64_t step) {
  const double* sums = window_sums_.const_data_ptr<double>();
  const int64_t num_task = num_task_sums_;
  const auto steps = static_cast<double>(std::max<int64_t>(window_steps_, 1));
  const tasks::NamedValues summary = task_.summarize({sums, sums + num_task}, window_steps_);

  // Steps of a window that began before this process started are not timed by it.
  // Of several ranks the host looks at a step when later ones are under way already.
  const double now = comm_->alone() ? now_seconds() : queued_at_[static_cast<size_t>(step % 4)];
  const auto timed = static_cast<double>(step - window_first_step_);
  const double seconds = std::max(now - window_start_ - paused_seconds_, 1e-9);
  const double step_seconds = seconds / std::max(timed, 1.0);
  const double samples_per_s = static_cast<double>(config_.train.global_batch_size) / step_seconds;
  const double peak_flops = runtime_.peak_flops * comm_->ranks();
  const double mfu = peak_flops > 0 ? task_.flops_per_step() / step_seconds / peak_flops : NAN;
  const MemoryReport memory = memory_report(runtime_.device, /*whole_device=*/false);

  std::vector<std::pair<std::string, double>> line;
  for (const auto& [key, value] : summary) line.emplace_back("train/" + key, value);
  line.emplace_back("train/lr", config_.optim.lr * lr_factor(step));
  line.emplace_back("train/grad_norm_raw", sums[num_task + kNormRaw] / steps);
  line.emplace_back("train/grad_norm_clipped", sums[num_task + kNormClipped] / steps);
  line.emplace_back("train/update_ratio", sums[num_task + kUpdateRatio] / steps);
  line.emplace_back("train/skipped_steps", sums[num_task + kSkipped]);
  if (scaler_) line.emplace_back("train/loss_scale", sums[num_task + kLossScale] / steps);
  line.emplace_back("perf/step_ms", step_seconds * 1e3);
  line.emplace_back("perf/data_wait_ms", window_wait_ms_ / std::max(timed, 1.0));
  if (clock_) line.emplace_back("perf/comm_wait_ms", window_comm_ms_ / steps / comm_->ranks());
  line.emplace_back("perf/samples_per_s", samples_per_s);
  line.emplace_back("perf/mfu", mfu);
  line.emplace_back("perf/peak_flops_assumed", peak_flops);
  line.emplace_back("perf/memory_allocated_bytes", static_cast<double>(memory.allocated));
  line.emplace_back("perf/memory_peak_bytes", static_cast<double>(memory.allocated_peak));
  line.emplace_back("perf/memory_reserved_bytes", static_cast<double>(memory.reserved));
  line.emplace_back("perf/memory_fragmentation", memory.fragmentation());
  log_.write(step, line);

  std::ostringstream text;
  text.precision(4);
  text << "step " << step << "/" << total_steps_ << " | " << task_.progress_text(summary) << " | ";
  text << static_cast<int64_t>(samples_per_s) << " samples/s | wait "
       << static_cast<int64_t>(window_wait_ms_ / std::max(timed, 1.0) + 0.5) << " ms | ";
  if (std::isfinite(mfu)) text << "MFU " << static_cast<int64_t>(mfu * 100 + 0.5) << " % | ";
  text << "eta " << human_seconds(step_seconds * static_cast<double>(total_steps_ - step));
  // A benchmark's end is not that of the run.
  if (!run_dir_.empty() && comm_->main()) log::progress(text.str());

  window_sums_.zero_();
  window_steps_ = 0;
  window_start_ = now;
  paused_seconds_ = 0;
  window_wait_ms_ = 0;
  window_comm_ms_ = 0;
  window_first_step_ = step;
}

// Once per step. False when a signal asked to stop meanwhile: then nothing is logged, and the evaluation is still due.
bool Trainer::evaluate() {
  if (!task_.can_evaluate() || last_eval_step_ == step_) return true;
  alive("evaluation");
  failpoint::hit(Failpoint::evaluation_begin);
  collect_metrics(/*wait=*/true);
  const double start = now_seconds();
  const std::string& which = config_.eval.weights;
  require(ema() || (which != "ema"), ExitCode::usage,
          "eval.weights is 'ema', but optim.ema is 0: there is no average to evaluate");
  const bool with_ema = ema() && which != "raw";
  std::vector<std::pair<std::string, tasks::NamedValues>> results;  // by prefix
  // False when a signal asked to stop meanwhile, on all ranks.
  const auto run_one = [&](const std::string& prefix) {
    EvalReporter reporter;
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
  if (with_ema && which == "both" && !run_one("eval_raw")) return false;
  for (const auto& [prefix, result] : results) {
    std::vector<std::pair<std::string, double>> line;
    for (const auto& [key, value] : result) line.emplace_back(prefix + "/" + key, value);
    log_.write(step_, line);
    log::info("step ", step_, " evaluation", prefix == "eval_raw" ? " (raw weights)" : "", ": ",
              task_.eval_text(result));
  }
  score_ = task_.score(results.front().second);
  early_stop_->add(score_);
  last_eval_step_ = step_;
  last_saved_step_ = -1;  // a checkpoint of before knows nothing of the evaluation
  paused_seconds_ += now_seconds() - start;
  return true;
}

// Opens and closes the window of profiled steps, before the step that follows. False when the run shall end with it.
bool Trainer::trace_steps() {
  const config::ProfilingConfig& profiling = config_.profiling;
  if (!profiling.trace && !profiling.nsight_window) return true;
  const int64_t done = process_steps_++;
  if (done == profiling.trace_after + profiling.trace_steps) {
    finish_trace();
    return !profiling.nsight_window;
  }
  if (done == profiling.trace_after) {
    if (profiling.nsight_window) {
      nsight_window_begin(runtime_.device);
    } else {
      trace_ = std::make_unique<StepTrace>(runtime_.device, trace_options(profiling));
    }
    tracing_ = true;
  }
  return true;
}

void Trainer::finish_trace() {
  if (!tracing_) return;
  tracing_ = false;
  if (!trace_) {
    nsight_window_end(runtime_.device);
    return;
  }
  const std::filesystem::path file =
      run_dir_ / (comm_->main() ? std::string("trace.json") : cat("trace_rank_", comm_->rank(), ".json"));
  trace_->finish(file);
  trace_.reset();
  log::info("traced ", std::min(process_steps_ - config_.profiling.trace_after, config_.profiling.trace_steps),
            " steps: ", file.string());
}

// The state of this moment begins its way to the disk; on ranks but the first, to rank 0.
void Trainer::save() {
  if (last_saved_step_ == step_) return;
  collect_metrics(/*wait=*/true);
  const double start = now_seconds();
  alive("checkpoint");
  check_replicas();
  auto whole = parallel::GatheredState::collect(*this, *comm_);
  if (comm_->main()) {
    saver_->save(whole, meta());
    const int64_t lost = saver_->lost_in_a_row(), most = config_.train.max_lost_checkpoints;
    require(most == 0 || lost < most, ExitCode::environment, "the last ", lost,
            " checkpoints could not be written (train.max_lost_checkpoints): ", saver_->failure());
  }
  last_saved_step_ = step_;
  paused_seconds_ += now_seconds() - start;
}

void Trainer::save_if_best() {
  if (!config_.train.keep_best || !(score_ > best_score_)) return;
  best_score_ = score_;
  save();
}

// Returns when the last checkpoint is on the disk; of several ranks on all.
void Trainer::finish_saving(double patience_s) {
  alive("checkpoint");
  if (saver_) saver_->finish(patience_s);
  comm_->barrier();
}

// The algorithms of the matrix products go along: a resumed run must sum in the same order (ops/gemm_tuning.h).
checkpoint::CheckpointMeta Trainer::meta() {
  checkpoint::CheckpointMeta meta{step_, config_json_, task_.signature()};
  for (const auto& [what, digest] : source_digests_) meta.info[kDigest + what] = digest;
  meta.info[kNextBatch] = task_.next_batch_digest();
  if (last_eval_step_ == step_) {
    std::ostringstream score;
    score.precision(17);
    score << score_;
    meta.info[checkpoint::kScore] = score.str();
  }
  if (ops::gemm_tuning() == ops::GemmTuning::off) return meta;
  if (const std::string choices = ops::gemm_choices(); !choices.empty()) meta.info[ops::kGemmChoices] = choices;
  return meta;
}

// A rank whose memory or arithmetic is at fault is found before it spoils a checkpoint.
void Trainer::check_replicas() {
  parallel::check_replicas(*this, *comm_);
}

void Trainer::stop_diverged(int64_t step) {
  log::progress_done();
  const std::string what = nonfinite_in_a_row_ == 0 ? cat("the gradient of step ", step, " is not finite")
                                                    : cat("the gradients of steps ", step - nonfinite_in_a_row_, " to ",
                                                          step, " are not finite");
  constexpr const char* kAdvice = ". Lower optim.lr or set optim.grad_clip";
  if (run_dir_.empty()) fail(ExitCode::diverged, what, kAdvice);
  std::string dump;
  checkpoint::CheckpointMeta facts = meta();
  facts.step = step;
  auto whole = parallel::GatheredState::collect(*this, *comm_);
  alive("checkpoint");
  if (!comm_->main()) {
    comm_->barrier();  // rank 0 writes
    fail(ExitCode::diverged, what, "; rank 0 says more");
  }
  try {
    dump = checkpoint::save_checkpoint(run_dir_ / "diverged", whole, facts, 1).string();
    dump = cat("the weights before it and the state are in '", dump, "'");
  } catch (const Error& e) {
    dump = cat("no dump could be written: ", e.what());
  }
  comm_->barrier();
  fail(ExitCode::diverged, what, "; ", dump, kAdvice, " (`hrm_train doctor --replay ", (run_dir_ / "diverged").string(),
       "` says where), then start again: the run resumes from its last checkpoint");
}

void Trainer::start_fresh() {
  task_.parameters().refresh_compute();
  if (ema()) ema()->reset();
  log_.truncate_after(0);
}

void Trainer::resume(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& info,
                     bool accept_data_change) {
  auto whole = parallel::GatheredState::room_for(*this);
  std::vector<std::string> optional = StepGuard::optional_state();
  optional.insert(optional.end(), {kOpenWindow, kOpenWindowOfOld, EarlyStop::kStatePrefix});
  if (const std::string more = task_.optional_state(); !more.empty()) optional.push_back(more);
  checkpoint::load_checkpoint(checkpoint, whole, optional);
  whole.hand_out();
  check_sources(info, checkpoint, accept_data_change);
  task_.parameters().refresh_compute();
  log_.truncate_after(step_);
  last_saved_step_ = step_;
  window_first_step_ = step_;
  if (const auto score = info.find(checkpoint::kScore); score != info.end()) score_ = std::stod(score->second);
}

// Other data, or another order of them, would silently be another training.
void Trainer::check_sources(const std::map<std::string, std::string>& info, const std::filesystem::path& checkpoint,
                            bool accept_change) {
  std::vector<std::pair<std::string, std::string>> now;  // the sources first: where they differ, so does the batch
  for (const auto& [what, digest] : task_.source_digests()) now.emplace_back(kDigest + what, digest);
  now.emplace_back(kNextBatch, task_.next_batch_digest());
  for (const auto& [key, digest] : now) {
    const auto then = info.find(key);
    if (then == info.end() || then->second == digest) continue;  // an earlier version wrote none
    const std::string what = key.substr(std::string(kDigest).size());
    const std::string sentence =
        key == kNextBatch
            ? cat("the next batch after step ", step_, " is not the one that '", checkpoint.string(), "' announces")
            : cat("the ", what, " is not what '", checkpoint.string(), "' was trained with");
    require(accept_change, ExitCode::data, sentence,
            ": the data or their order changed; bring the old ones back, start another run.name, or go on with "
            "these: --accept-data-change");
    log::warn(sentence, "; going on as --accept-data-change says");
  }
}

void Trainer::skip_after_rewind(int64_t spike_step, int64_t rewinds) {
  task_.skip_batches(spike_step - step_);
  rewinds_ = rewinds;
  last_saved_step_ = -1;
  prepare_checkpoints();
  save();
  finish_saving(kPatienceAtEnd);
}

void Trainer::visit_state(StateVisitor& visitor) {
  visitor.integer("loop.step", step_);
  visitor.integer("loop.last_eval_step", last_eval_step_);
  visitor.tensor(cat(kOpenWindow, "sums"), window_sums_, StateRole::loop);
  visitor.integer(cat(kOpenWindow, "steps"), window_steps_);
  task_.visit_state(visitor);
  optimizer_->visit_state(visitor);
  if (ema_) ema_->visit_state(visitor);
  if (shards_) shards_->visit_state(visitor);
  if (scaler_) scaler_->visit_state(visitor);
  guard_->visit_state(visitor);
  early_stop_->visit_state(visitor);
  if (config_.train.spike_action == "rewind") visitor.integer("guard.rewinds", rewinds_);
}

}  // namespace hrm::train

// The trainer's metrics: from the values of a step to the lines of a run.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/data/prefetch_stats.h"
#include "hrm/runtime/memory.h"
#include "hrm/train/eval_reporter.h"
#include "hrm/train/trainer.h"
#include "train/metric_window.h"
#include "train/trainer_values.h"

namespace hrm::train {
namespace {

constexpr int64_t kMostRewinds = 3;

}  // namespace

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
  const double* values = entry.values.data() + front_;
  const auto flags = static_cast<int64_t>(entry.values[kStop]);
  stop_seen_ = stop_seen_ || flags % kPartWritten != 0;
  parts_written_ = parts_written_ || flags / kPartWritten == comm_->ranks();
  if (!comm_->alone()) {
    window_->add_rank_wait(entry.values[kWaited], entry.values.data() + kWaitedOn);
    watch_speed(entry.tag, entry.values.data());
  }
  const double* extra = values + num_task_sums_;
  const bool nonfinite = extra[kNonFinite] != 0;
  if (extra[kGiveUp] != 0 || (nonfinite && !scaler_ && entry.tag == total_steps_)) stop_diverged(entry.tag);
  watch_step(entry.tag, nonfinite, extra[kSpike] != 0);
  window_->add(values);
  if (logged(entry.tag)) write_window(entry.tag);
}

void Trainer::watch_step(int64_t step, bool nonfinite, bool spike) {
  nonfinite_in_a_row_ = nonfinite ? nonfinite_in_a_row_ + 1 : 0;
  if (!comm_->main()) spike = spike && config_.train.spike_action == config::SpikeAction::rewind;
  if (nonfinite && !scaler_ && comm_->main()) {
    log::warn("step ", step, ": the gradient is not finite; its update was left out (", nonfinite_in_a_row_, " of ",
              config_.train.max_nonfinite_steps, " in a row, train.max_nonfinite_steps)");
  }
  if (!spike) return;
  if (comm_->main()) log::warn("step ", step, ": the loss is a spike (train.spike_score); its update was left out");
  if (config_.train.spike_action == config::SpikeAction::rewind && rewinds_ < kMostRewinds && spike_step_ < 0)
    spike_step_ = step;
}

// What is read with a step is of the one before; with it come evaluations and checkpoints that lay between the two.
void Trainer::watch_speed(int64_t step, const double* values) {
  if (step - 1 == last_eval_step_ || step - 1 == last_saved_step_) return;
  const std::string slow = slow_ranks_.add(values + kOwn, values + kWaitedOn);
  if (!slow.empty() && comm_->main()) log::warn("step ", step, ": ", slow);
}

void Trainer::write_window(int64_t step) {
  const tasks::NamedValues summary = task_.summarize(window_->task_sums(), window_->steps());
  const MetricWindow::Times times = window_->times(step);
  const double samples_per_s = static_cast<double>(config_.train.global_batch_size) / times.step_s;
  const double peak_flops = runtime_.peak_flops * comm_->ranks();
  const double mfu = peak_flops > 0 ? task_.flops_per_step() / times.step_s / peak_flops : NAN;
  const MemoryReport memory = memory_report(runtime_.device, /*whole_device=*/false);

  std::vector<std::pair<std::string, double>> line;
  for (const auto& [key, value] : summary) line.emplace_back("train/" + key, value);
  line.emplace_back("train/lr", config_.optim.lr * lr_factor(step));
  line.emplace_back("train/grad_norm_raw", window_->mean(kNormRaw));
  line.emplace_back("train/grad_norm_clipped", window_->mean(kNormClipped));
  line.emplace_back("train/update_ratio", window_->mean(kUpdateRatio));
  line.emplace_back("train/skipped_steps", window_->sum(kSkipped));
  if (scaler_) line.emplace_back("train/loss_scale", window_->mean(kLossScale));
  line.emplace_back("perf/step_ms", times.step_s * 1e3);
  line.emplace_back("perf/data_wait_ms", times.data_wait_ms);
  for (const auto& [source, stats] : data::take_prefetch_stats()) {
    const double batches = static_cast<double>(std::max<int64_t>(stats.batches, 1));
    line.emplace_back("perf/data_queue_depth_" + source, stats.ready / batches);
    line.emplace_back("perf/data_wait_ms_" + source, stats.wait_ms / batches);
    line.emplace_back("perf/data_fill_ms_" + source, stats.fill_ms / batches);
  }
  if (clock_) line.emplace_back("perf/comm_wait_ms", window_->mean_rank_wait_ms() / comm_->ranks());
  for (const parallel::Axis axis : parallel::kAllAxes) {
    const double ms = window_->mean_axis_wait_ms(static_cast<size_t>(axis));
    if (!clock_ || mesh_->place().plain() || ms == 0) continue;
    line.emplace_back(cat("perf/comm_wait_ms_", parallel::axis_name(axis)), ms / comm_->ranks());
  }
  tasks::NamedValues phases = phases_ ? phases_->take(step) : tasks::NamedValues();
  for (auto& [name, ms] : phases) ms /= static_cast<double>(times.steps);
  for (const auto& [name, ms] : phases) {
    if (name != phase_name(Phase::eval_batch)) line.emplace_back(cat("perf/phase/", name, "_ms"), ms);
  }
  for (const auto& [key, value] : task_.take_performance(times.steps, times.step_s * 1e3, phases))
    line.emplace_back("perf/" + key, value);
  line.emplace_back("perf/samples_per_s", samples_per_s);
  for (const auto& [key, value] : summary) {
    if (key == "tokens") line.emplace_back("perf/tokens_per_s", value / times.step_s);
  }
  line.emplace_back("perf/mfu", mfu);
  line.emplace_back("perf/peak_flops_assumed", peak_flops);
  line.emplace_back("perf/memory_allocated_bytes", static_cast<double>(memory.allocated));
  line.emplace_back("perf/memory_peak_bytes", static_cast<double>(memory.allocated_peak));
  line.emplace_back("perf/memory_reserved_bytes", static_cast<double>(memory.reserved));
  line.emplace_back("perf/memory_fragmentation", memory.fragmentation());
  const GpuHealth::Values health = gpu_health_ != nullptr ? gpu_health_->take() : GpuHealth::Values();
  for (const auto& [key, value] : health) line.emplace_back("perf/gpu/" + key, value);
  log_.write(step, line);

  std::ostringstream text;
  text.precision(4);
  text << "step " << step << "/" << total_steps_ << " | " << task_.progress_text(summary) << " | ";
  text << static_cast<int64_t>(samples_per_s) << " samples/s | wait " << static_cast<int64_t>(times.data_wait_ms + 0.5)
       << " ms | ";
  if (std::isfinite(mfu)) text << "MFU " << static_cast<int64_t>(mfu * 100 + 0.5) << " % | ";
  if (!health.empty()) text << "GPU " << GpuHealth::text(health) << " | ";
  text << "eta " << human_seconds(times.step_s * static_cast<double>(total_steps_ - step));
  // A benchmark's end is not that of the run.
  if (!run_dir_.empty() && comm_->main()) log::progress(text.str());

  window_->clear(step, times.end_s);
}

}  // namespace hrm::train

#include "train/metric_window.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "hrm/base/text.h"
#include "hrm/train/eval_reporter.h"

namespace hrm::train {

MetricWindow::MetricWindow(int64_t task_sums, int64_t extras, bool several_ranks, bool switched)
    : task_sums_(task_sums),
      several_ranks_(several_ranks),
      switched_(switched),
      sums_(at::zeros({task_sums + extras}, at::kDouble)) {}

void MetricWindow::visit_state(StateVisitor& visitor) {
  const char* prefix = switched_ ? kSwitchedStatePrefix : kStatePrefix;
  visitor.tensor(cat(prefix, "sums"), sums_, StateRole::loop);
  visitor.integer(cat(prefix, "steps"), steps_);
}

void MetricWindow::add(const double* values) {
  auto sums = sums_.accessor<double, 1>();
  const bool finite = std::all_of(values, values + task_sums_, [](double value) { return std::isfinite(value); });
  for (int64_t i = finite ? 0 : task_sums_; i < sums.size(0); ++i) sums[i] += values[i];
  steps_ += finite;
}

std::vector<double> MetricWindow::task_sums() const {
  const double* sums = sums_.const_data_ptr<double>();
  return {sums, sums + task_sums_};
}

MetricWindow::Times MetricWindow::times(int64_t step) const {
  Times times{.steps = std::max<int64_t>(step - first_step_, 1),
              .end_s = several_ranks_ ? queued_at_[static_cast<size_t>(step % kQueued)] : now_seconds()};
  const double seconds = std::max(times.end_s - start_ - paused_s_, 1e-9);
  times.step_s = seconds / static_cast<double>(times.steps);
  times.data_wait_ms = data_wait_ms_ / static_cast<double>(times.steps);
  return times;
}

void MetricWindow::clear(int64_t step, double end_s) {
  sums_.zero_();
  steps_ = 0;
  first_step_ = step;
  start_ = end_s;
  paused_s_ = data_wait_ms_ = rank_wait_ms_ = 0;
  axis_wait_ms_ = {};
}

}  // namespace hrm::train

#pragma once
// The open window of metrics: the sums over the steps since the last logged line, and how long these steps took.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "hrm/state/registry.h"
#include "train/trainer_values.h"

namespace hrm::train {

class MetricWindow : public Stateful {
 public:
  // `task_sums` sums of the task, behind which `extras` values of enum Extra come. With `several_ranks` the host looks
  // at a step when kAgreementLag later ones are under way: a window ends when its last step was queued.
  // `switched`: the task's sums have some that a resume may switch on and off (Task::has_switched_metrics).
  MetricWindow(int64_t task_sums, int64_t extras, bool several_ranks, bool switched = false);

  // Prefix of the state's names. A window with switched metrics has the second one, so a resume that switches drops the
  // open window. Earlier versions kept fewer values, under the last two. Those windows are dropped, too: the first line
  // after such a resume covers only later steps.
  static constexpr const char *kStatePrefix = "loop.open_window.", *kSwitchedStatePrefix = "loop.switched_sums.",
                              *kEarlierStatePrefix = "loop.window_",
                              *kEarlierSwitchedStatePrefix = "loop.switched_window.";
  // The sums and the number of steps; clocks are of this process.
  void visit_state(StateVisitor& visitor) override;

  // The clock of this process begins to run.
  void start(double now_s) { start_ = now_s; }
  // Steps up to this one were made by an earlier process, and are not timed.
  void resume_after(int64_t step) { first_step_ = step; }

  // The host has queued a step, or waited within it: for data; for other ranks, of all ranks together.
  void queued(int64_t step, double now_s) { queued_at_[static_cast<size_t>(step % kQueued)] = now_s; }
  void add_data_wait(double ms) { data_wait_ms_ += ms; }
  // `axis_ms`: of it on each axis of the mesh; null: not known.
  void add_rank_wait(double ms, const double* axis_ms = nullptr) {
    rank_wait_ms_ += ms;
    for (size_t axis = 0; axis_ms != nullptr && axis < axis_wait_ms_.size(); ++axis) {
      axis_wait_ms_[axis] += axis_ms[axis];
    }
  }
  // Time of evaluations and checkpoints, which belongs to no step.
  void add_pause(double seconds) { paused_s_ += seconds; }

  // The values of a finished step, the task's sums and the extras. Sums that are not all finite are skipped with their
  // step; that its update was left out is counted.
  void add(const double* values);

  int64_t steps() const { return steps_; }  // whose sums are in the window
  std::vector<double> task_sums() const;
  double sum(Extra extra) const { return sums_.const_data_ptr<double>()[task_sums_ + extra]; }
  double mean(Extra extra) const { return sum(extra) / steps_or_one(); }
  double mean_rank_wait_ms() const { return rank_wait_ms_ / steps_or_one(); }
  double mean_axis_wait_ms(size_t axis) const { return axis_wait_ms_[axis] / steps_or_one(); }

  // Means over the steps of this process, of a window that ends with `step`.
  struct Times {
    int64_t steps = 0;  // that were timed, at least 1
    double step_s = 0;  // without pauses
    double data_wait_ms = 0;
    double end_s = 0;
  };
  Times times(int64_t step) const;

  // Behind its line: the next window begins after `step`.
  void clear(int64_t step, double end_s);

 private:
  double steps_or_one() const { return steps_ > 0 ? static_cast<double>(steps_) : 1; }

  static constexpr int64_t kQueued = 4;
  static_assert(static_cast<int64_t>(kAgreementLag) < kQueued);

  int64_t task_sums_;
  bool several_ranks_, switched_;
  at::Tensor sums_;  // float64 on the CPU
  int64_t steps_ = 0;
  int64_t first_step_ = 0;                      // the timing starts after this step
  double start_ = 0;                            // s, monotonic
  std::array<double, kQueued> queued_at_{};     // step s: [s % kQueued], s, monotonic
  double paused_s_ = 0;                         // since start_
  double data_wait_ms_ = 0, rank_wait_ms_ = 0;  // of this window
  std::array<double, parallel::kAxes> axis_wait_ms_{};
};

}  // namespace hrm::train

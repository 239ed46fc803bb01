#pragma once
// Where the time of the polychromic task's steps goes: training phases by the device's clock, sampling phases by the
// host's clock, and the computed matrix products. Of this process and rank; not part of the state.

#include <cstdint>
#include <string>

#include "hrm/tasks/task.h"

namespace hrm::tasks {

// What sampling the answers of one or several steps took.
struct SamplingTimes {
  double merge_ms = 0, prefill_ms = 0, decode_ms = 0;  // of the adapter; of the prompts; of the answers
  double encode_ms = 0, diversity_ms = 0;              // in the sentence encoder; in the diversity metric
  int64_t prompt_tokens = 0, answer_tokens = 0, encoded_tokens = 0;

  void add(const SamplingTimes& more);
};

class PolychromicTimes {
 public:
  // `samples`: whether any step samples answers.
  explicit PolychromicTimes(bool samples) : samples_(samples) {}

  // Once a step that samples.
  void add_sampling(const SamplingTimes& times) { sampling_.add(times); }
  // Once a step: operations of its matrix products on all ranks, and tokens of this rank that it learns from, both
  // with padding.
  void add_work(double flops, double tokens);

  // Mean over the steps since the last take(), or before it where there was none since.
  double flops_per_step() const;

  // As Task::take_performance; begins a new window.
  NamedValues take(int64_t steps, double step_ms, const NamedValues& phases);
  // Of the window that was taken last, e.g. " | generated 812 tok/s | decode 61 %, backward 20 %"; may be empty.
  std::string progress_text() const;

 private:
  bool samples_;
  SamplingTimes sampling_;  // since the last take()
  struct Work {
    double flops = 0, tokens = 0;
    double flops_before = 0;  // a step's, until the last take()
    int64_t steps = 0;
  };
  Work work_;
  double last_generated_per_s_ = 0;
  NamedValues last_shares_;  // of a step's time, the longest first
};

}  // namespace hrm::tasks

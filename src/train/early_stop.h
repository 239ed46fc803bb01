#pragma once
// The end of a run whose evaluations grow no better.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hrm/config/config.h"
#include "hrm/state/registry.h"

namespace hrm::train {

class EarlyStop : public Stateful {
 public:
  explicit EarlyStop(const config::TrainConfig& config);

  // After an evaluation; the higher the score, the better. NaN is no better than anything.
  void add(double score);
  // Whether train.early_stop_evals in a row were no better than the best before by more than train.early_stop_delta.
  bool over() const { return evals_ > 0 && in_a_row_ >= evals_; }
  int64_t in_a_row() const { return in_a_row_; }
  double best() const;

  // Prefix of its state, which checkpoints of runs without it lack.
  static constexpr const char* kStatePrefix = "early_stop.";
  void visit_state(StateVisitor& visitor) override;

 private:
  int64_t evals_ = 0;
  double delta_ = 0;
  int64_t in_a_row_ = 0;
  at::Tensor best_;  // 0-dim float64 on the CPU
};

}  // namespace hrm::train

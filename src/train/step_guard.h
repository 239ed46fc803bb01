#pragma once
// Which steps are skipped because their arithmetic went wrong, decided on the device so that a captured step needs no
// word from the host.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/state/registry.h"

namespace hrm::train {

// A step is skipped if its gradient is not finite. With train.spike_score > 0 it is also skipped if its loss is that
// many standard deviations above the mean of the last train.spike_window losses (once that many are known).
//
// All tensors are on the device, at the same addresses while this object lives. Everything is computed on the current
// stream; nothing waits. Ranks with the same loss and norm get the same answer.
class StepGuard : public Stateful {
 public:
  StepGuard(const config::TrainConfig& config, at::Device device);

  // Before the gradient is used. `loss`: 0-dim float64, of the whole global batch. 0-dim float32: 1 where the step must
  // be left out whatever its gradient is: the loss is a spike, or give_up() was 1 already.
  at::Tensor skip(const at::Tensor& loss);
  // Afterwards. `nonfinite`: 0-dim float32, 1 where the gradient was not finite.
  void update(const at::Tensor& loss, const at::Tensor& nonfinite);

  // 0-dim float32. The first is 1 if the last loss was a spike. The second is 1 if train.max_nonfinite_steps in a row
  // were not finite; from then on all steps are skipped.
  const at::Tensor& spike() const { return spike_; }
  at::Tensor give_up() const;
  // Steps in a row that were not finite, 0-dim float32.
  const at::Tensor& in_a_row() const { return in_a_row_; }

  // "guard.*"; role loop. A checkpoint need not have them (optional_state: their prefixes).
  void visit_state(StateVisitor& visitor) override;
  static std::vector<std::string> optional_state() { return {"guard.nonfinite", "guard.losses", "guard.rewinds"}; }

 private:
  double most_in_a_row_, spike_score_;
  at::Tensor in_a_row_, spike_;
  at::Tensor losses_, known_;  // (window) float64, a ring; 0-dim int64: how many losses were ever put in
};

}  // namespace hrm::train

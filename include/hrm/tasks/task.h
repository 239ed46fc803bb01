#pragma once
// The seam between what is trained and how. A Task owns the model, its objective, its data and its evaluation; the
// Trainer owns the loop, the optimizer, averaging, logging, checkpoints and signals, the same for every task. A new
// objective is a new Task and touches nothing else.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hrm/nn/parameter.h"
#include "hrm/state/registry.h"

namespace hrm::tasks {

using NamedValues = std::vector<std::pair<std::string, double>>;

struct EvalProgress {
  int64_t done = 0;   // samples
  int64_t total = 0;  // samples
};

class Task : public Stateful {
 public:
  // Dense parameters: the trainer's optimizer updates them.
  virtual nn::ParameterSet& parameters() = 0;

  // Names of the sums that forward_backward adds up, and how a window of steps is reported from them.
  virtual const std::vector<std::string>& metric_names() const = 0;
  // `sums`: metric sums over `steps` optimizer steps of the whole global batch. Keys without prefix.
  virtual NamedValues summarize(const std::vector<double>& sums, int64_t steps) const = 0;
  // What the progress line shows of a summary, e.g. "exact 31.2 % | cells 78.0 %".
  virtual std::string progress_text(const NamedValues& summary) const = 0;

  // Training samples of one pass over the training data.
  virtual double samples_per_epoch() const = 0;
  // Floating-point operations of the matrix products of one step.
  virtual double flops_per_step() const = 0;

  // Takes the next global batch from the prefetch thread and starts its copy to the device. Returns the milliseconds
  // that it had to wait for data. `step` counts from 1.
  virtual double load_batch(int64_t step) = 0;
  // Forward and backward of one micro-batch: adds the gradient of (loss / global batch) to the parameters' buffers and
  // the metric sums, (M) float64 on the device, to `metric_sums`. No host synchronisation.
  virtual void forward_backward(int64_t step, int64_t micro_batch, at::Tensor& metric_sums) = 0;
  // Updates what the dense optimizer does not own (sparse embeddings), after all micro-batches. `lr_factor` is the
  // schedule's value relative to the base rate; `skip` a 0-dim float32 device tensor, non-zero = leave all untouched.
  virtual void update_extra(double lr_factor, const at::Tensor& skip) = 0;

  // True when there is test data.
  virtual bool can_evaluate() const = 0;
  // Evaluates the current weights; keys without prefix.
  virtual NamedValues evaluate(const std::function<void(const EvalProgress&)>& progress) = 0;
  virtual std::string eval_text(const NamedValues& result) const = 0;

  // Facts that a checkpoint must carry so that its model can be rebuilt without the training data, e.g. sizes.
  virtual std::map<std::string, std::string> signature() const = 0;

  // One paragraph for the start of the log: model, parameters, data.
  virtual std::string describe() const = 0;
};

}  // namespace hrm::tasks

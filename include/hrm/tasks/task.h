#pragma once
// The interface between what is trained and how. A Task owns the model, its objective, its data and its evaluation. The
// Trainer owns the loop, the optimizer, EMA, logging, checkpoints and signals, the same for every task. A new objective
// is a new Task and changes nothing else.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hrm/nn/parameter.h"
#include "hrm/optim/groups.h"
#include "hrm/state/registry.h"

namespace hrm::tasks {

using NamedValues = std::vector<std::pair<std::string, double>>;

struct EvalProgress {
  int64_t done = 0;   // samples
  int64_t total = 0;  // samples
};

inline constexpr const char* kFrozenModel = "frozen model";

class Task : public Stateful {
 public:
  // Dense parameters: the trainer's optimizer updates them.
  virtual nn::ParameterSet& parameters() = 0;
  // Which of them do not decay, and which matrices are none of Muon's, unless the configuration says otherwise.
  virtual optim::GroupDefaults group_defaults() const { return {}; }

  // Names of the sums that forward_backward adds up, and how a window of steps is reported from them.
  virtual const std::vector<std::string>& metric_names() const = 0;
  // Whether some of these names depend on settings that a resumed run may change.
  virtual bool has_switched_metrics() const { return false; }
  // `sums`: metric sums over `steps` optimizer steps of the whole global batch. Keys without prefix.
  virtual NamedValues summarize(const std::vector<double>& sums, int64_t steps) const = 0;
  // What the task's own work took since the last call, per step, e.g. milliseconds of generating; keys without prefix.
  // `steps` steps, each of `step_ms` milliseconds on average, without evaluating and saving, of which each phase took
  // `phases` milliseconds (empty if they are not measured). Of this rank; no part of the state, for a resume has other
  // times.
  virtual NamedValues take_performance(int64_t /*steps*/, double /*step_ms*/, const NamedValues& /*phases*/) {
    return {};
  }
  // The loss of one step from its metric sums, on the device: 0-dim float64, per sample.
  virtual at::Tensor step_loss(const at::Tensor& sums) const = 0;
  // What the progress line shows of a summary, e.g. "exact 31.2 % | cells 78.0 %".
  virtual std::string progress_text(const NamedValues& summary) const = 0;

  // Training samples of one pass over the training data.
  virtual double samples_per_epoch() const = 0;
  // Floating-point operations of the matrix products of one step; where steps differ, of the last ones on average.
  virtual double flops_per_step() const = 0;

  // One optimizer step is load_batch, prepare_step, then forward_backward for each micro-batch and update_extra, then
  // finish_step. Micro-batches and update_extra are captured in a CUDA graph (runtime/captured_step.h). They read
  // nothing from the host that changes from step to step, wait for nothing, and leave their results in tensors with
  // fixed addresses.

  // Writes everything that changes from step to step to fixed addresses on the device: the next global batch from the
  // prefetch thread, random draws, learning rates of what the task updates itself. Returns the milliseconds that it
  // waited for data. `step` counts from 1; `lr_factor` is the schedule's value relative to the base rate.
  virtual double load_batch(int64_t step, double lr_factor) = 0;
  // What else the step needs before its captured work, e.g. completions that are sampled from the current weights.
  virtual void prepare_step(int64_t /*step*/) {}
  // Whether prepare_step will wait until the device has done the steps before, as sampling from what they learned does.
  // The metrics of those are then read first, so that a window's times are those of its own steps.
  virtual bool waits_for_device(int64_t /*step*/) const { return false; }
  // The tensors that load_batch fills, so that a replay can make sure that they are where they were.
  virtual std::vector<at::Tensor> step_inputs() const = 0;
  // Which of several forms the device work of the step that load_batch announced has; each is captured by itself.
  virtual int64_t graph_key() const { return 0; }
  // Whether a form that steps have left may come back. If none does, its graph is dropped when the next form is new.
  virtual bool forms_return() const { return true; }
  // Forward and backward of one micro-batch. Adds the gradient of (loss * loss_scale / global batch) to the parameters'
  // buffers, and the metric sums, (M) float64 on the device, to `metric_sums`. loss_scale: 0-dim float32 on the device,
  // undefined = 1.
  virtual void forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) = 0;
  // Updates what the dense optimizer does not own (sparse embeddings), after all micro-batches. `skip`: 0-dim float32
  // on the device, non-zero = leave all untouched.
  virtual void update_extra(const at::Tensor& skip) = 0;
  // Skips this many global batches. Call it before the first step of this object, after a resume.
  virtual void skip_batches(int64_t count) = 0;
  // What the host has to do after the device work was queued.
  virtual void finish_step() {}
  // Empty, or why the device work of this task cannot be captured.
  virtual std::string why_not_captured() const { return ""; }

  // True when there is test data.
  virtual bool can_evaluate() const = 0;
  // One sentence for where there is none: what is missing and what to do.
  virtual std::string nothing_to_evaluate() const { return "there is nothing to evaluate; set data.test"; }
  // How much an evaluation computes of a sample, by the singular of what is counted, e.g. {"segment", 16}.
  virtual std::vector<std::pair<std::string, int64_t>> evaluation_sizes() const { return {}; }
  // FLOPs of the matrix products of an evaluation of one sample; 0 if they are not known.
  virtual double flops_per_evaluated_sample() const { return 0; }
  // Lets an untrained model be evaluated as after a step, to time it.
  virtual void prepare_untrained_evaluation() {}
  // Evaluates the current weights; keys without prefix. What `progress` throws ends it and leaves the task as it was.
  virtual NamedValues evaluate(const std::function<void(const EvalProgress&)>& progress) = 0;
  virtual std::string eval_text(const NamedValues& result) const = 0;
  // What makes one evaluation better than another: the higher, the better.
  virtual double score(const NamedValues& result) const = 0;

  // Facts that a checkpoint must carry so that its model can be rebuilt without the training data, e.g. sizes.
  virtual std::map<std::string, std::string> signature() const = 0;

  // Digests of what a resumed training must find as it was: the training data, later a tokenizer. By what it is
  // ("training data"); kept in checkpoints. May read all of it. That of kFrozenModel is of weights that the checkpoint
  // is of no use without.
  virtual std::map<std::string, std::string> source_digests() const = 0;
  // Digest of the global batch that is taken next, at `step` or behind it, as load_batch would give it, on any number
  // of ranks. Written into a checkpoint and compared after a resume: data, their order and the draws all go into it.
  virtual std::string next_batch_digest(int64_t step) = 0;

  // Weights, by their names in a checkpoint, that have a row for each kind of sample in the data. A training that
  // begins with the weights of another one, which had more or fewer, makes them anew of the mean of the old rows.
  virtual std::vector<std::string> weights_by_sample() const { return {}; }

  // Prefixes of state entries that depend on the configuration, so a run may be resumed with another choice. They start
  // afresh if the checkpoint lacks them, and are skipped if nobody needs them.
  virtual std::vector<std::string> optional_state() const { return {}; }

  // How the weights of a model that is cut are cut, by their names in a checkpoint.
  virtual std::map<std::string, nn::ParameterCut> cut_weights() const { return {}; }

  // Files that the run folder shall hold so that its model can be used without the data, e.g. a tokenizer. Rank 0's.
  virtual void write_files(const std::filesystem::path&) const {}

  // One paragraph for the start of the log: model, parameters, data.
  virtual std::string describe() const = 0;
};

// The optimizer steps of a whole run: train.steps, or those of train.epochs. Error(usage) for less than one.
int64_t planned_steps(const config::TrainConfig& config, const Task& task);

// The value of a key; nullopt when it is not there.
std::optional<double> find_value(const NamedValues& values, const std::string& key);
// The same; Error(unexpected) when it is not there.
double value_of(const NamedValues& values, const std::string& key);

// Names and tensors of a model as checkpoints hold them: parameters, then buffers.
void visit_model(torch::nn::Module& model, StateVisitor& visitor);

// Task::cut_weights() of a model.
std::map<std::string, nn::ParameterCut> cut_weights_of(const torch::nn::Module& model);

// A model alone, as checkpoints hold it.
class ModelState : public Stateful {
 public:
  explicit ModelState(torch::nn::Module& model) : model_(model) {}
  void visit_state(StateVisitor& visitor) override { visit_model(model_, visitor); }

 private:
  torch::nn::Module& model_;
};

}  // namespace hrm::tasks

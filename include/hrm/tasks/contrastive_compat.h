#pragma once
// contrastive.mode=compat: the training of Trainer2 (https://github.com/JewJitsu11B/Liorhybrid) as a task, on packed
// text. Its window is objectives/contrastive_compat.h. It does not learn; it is here for comparison and timing.
//
// A step is one two-phase window on B rows of T tokens. Encoder: an embedding table that is drawn once and never
// trained, without dropout. Trained are the metric g (n) and the angles theta (k). Their gradients are such that plain
// SGD with the rate eta_update = optim.lr gives the original's update; clamping and wrapping follow it.
//
// Differences from the original: a window whose dL is not finite is a skipped step of the trainer. It leaves field and
// memory as they were, and too many in a row end the run. The original keeps the old metric and goes on. The draws of
// E_var come from another generator.
//
// Ranks share the rows of a batch. dL and the mean velocity are means over all of them, and every rank's memory takes
// the rows of all ranks in their order.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/language_stream.h"
#include "hrm/data/token_dataset.h"
#include "hrm/objectives/contrastive_compat.h"
#include "hrm/parallel/comm.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/staged_batches.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

objectives::CompatSettings compat_settings(const config::ContrastiveConfig& config);
objectives::CompatSizes compat_sizes(const config::ContrastiveConfig& config);

// What a checkpoint of the mode calls weights: g (n), theta (k) unless k is 0, and the embedding (V, d), a buffer.
// float32.
class CompatModel : public torch::nn::Module {
 public:
  CompatModel(const at::Tensor& g, const at::Tensor& theta, const at::Tensor& embedding);

  nn::ParameterSet& parameter_set() { return parameter_set_; }
  const at::Tensor& g() const { return g_; }
  const at::Tensor& theta() const { return theta_; }
  const at::Tensor& embedding() const { return embedding_; }

 private:
  at::Tensor g_, theta_, embedding_;
  nn::ParameterSet parameter_set_;
};

class CompatTask : public Task {
 public:
  // Opens the text of data.train. Draws the field, then the embedding, from run.seed. Error(data) or Error(usage).
  CompatTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm = nullptr);

  nn::ParameterSet& parameters() override { return model_->parameter_set(); }
  // loss is lior, the mean LIoR action of the free phase: the original has no loss. lior_plus is that of the nudged
  // phase. dL, R_mean, spd_mean, E_geo, E_var and E_struct are the original's numbers. dg and dtheta are lengths of the
  // update, one step late.
  const std::vector<std::string>& metric_names() const override { return metric_names_; }
  NamedValues summarize(const std::vector<double>& sums, int64_t steps) const override;
  at::Tensor step_loss(const at::Tensor& sums) const override { return sums.select(0, 0).clone(); }
  std::string progress_text(const NamedValues& summary) const override;
  double samples_per_epoch() const override;
  double flops_per_step() const override;
  double load_batch(int64_t step, double lr_factor) override;
  std::vector<at::Tensor> step_inputs() const override { return {ids_, counter_}; }
  // Both phases, on copies of field and history.
  void forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) override;
  // Clamps, wraps, writes the memory twice, and takes over the copies. Nothing of it where `skip` is not zero.
  void update_extra(const at::Tensor& skip) override;
  void skip_batches(int64_t count) override;
  bool can_evaluate() const override { return false; }
  std::string nothing_to_evaluate() const override;
  NamedValues evaluate(const std::function<void(const EvalProgress&)>& progress) override;
  std::string eval_text(const NamedValues& result) const override;
  double score(const NamedValues& result) const override;
  std::map<std::string, std::string> signature() const override;
  std::map<std::string, std::string> source_digests() const override;
  std::string next_batch_digest(int64_t step) override;
  std::string describe() const override;
  void visit_state(StateVisitor& visitor) override;

  const CompatModel& model() const { return *model_; }
  // The memory and its counters. Its field and history are the copies that a step works on.
  const objectives::CompatState& state() const { return window_->state(); }
  const at::Tensor& field() const { return field_; }
  const at::Tensor& history() const { return history_; }
  // (B, T) int64: this rank's rows.
  const at::Tensor& ids() const { return ids_; }

 private:
  data::LanguageStreamOptions stream_options() const;
  void reduce(objectives::CompatResult& result) const;
  at::Tensor metrics_of(const objectives::CompatResult& result) const;
  at::Tensor of_all_ranks(const at::Tensor& rows) const;

  const config::Config& config_;
  Runtime runtime_;
  std::shared_ptr<parallel::Comm> comm_;
  std::vector<data::WeightedSource> sources_;  // one
  std::shared_ptr<CompatModel> model_;
  std::unique_ptr<objectives::CompatWindow> window_;
  int64_t rows_ = 0;  // this rank's of the global batch
  std::vector<std::string> metric_names_;
  mutable std::string train_digest_;

  std::unique_ptr<data::LanguageStream> stream_;  // opened at the first step, at the position a resume may have set
  int64_t position_ = 0;                          // registered: samples used so far
  StagedBatches<data::LanguageStreamBatch> staged_;

  // At fixed addresses.
  at::Tensor ids_;
  at::Tensor counter_;             // 0-dim int64: the step
  at::Tensor noise_;               // (kNoises, 8, n): draws of E_var; a window takes those of its step
  at::Tensor velocity_, episode_;  // of the step: rows that its memory takes
  at::Tensor g_before_, theta_before_;
  // Registered, besides the window's memory and counters.
  at::Tensor field_, history_;
  at::Tensor changes_;  // (2) float64: dg and dtheta of the last update
};

}  // namespace hrm::tasks

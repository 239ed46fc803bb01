#pragma once
// What the models of task=contrastive share: samples with a class, their stream, the evaluation of logits, and metrics
// that are means over the batch. A derived class owns the model and makes its gradients.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/vectors.h"
#include "hrm/parallel/comm.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/contrastive_data.h"
#include "hrm/tasks/staged_batches.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

// Mean cross-entropy and accuracy on all rows of a source (`loss`, `accuracy`, `rows`; of text `bits_per_token`),
// `batch` rows at a time. `logits`: of inputs (B, features) float32, (B, classes). Ranks share the rows.
NamedValues evaluate_samples(const ContrastiveSource& source, int64_t batch, at::Device device, parallel::Comm& comm,
                             const std::function<at::Tensor(const at::Tensor&)>& logits,
                             const std::function<void(const EvalProgress&)>& progress);
std::string samples_eval_text(const NamedValues& result);

class SampleTask : public Task {
 public:
  const std::vector<std::string>& metric_names() const override { return metric_names_; }
  NamedValues summarize(const std::vector<double>& sums, int64_t steps) const override;
  at::Tensor step_loss(const at::Tensor& sums) const override;
  std::string progress_text(const NamedValues& summary) const override;
  double samples_per_epoch() const override { return static_cast<double>(data_.train->rows()); }
  double load_batch(int64_t step, double lr_factor) override;
  std::vector<at::Tensor> step_inputs() const override { return {batch_.inputs, batch_.labels, counter_}; }
  void skip_batches(int64_t count) override;
  bool can_evaluate() const override { return data_.test != nullptr; }
  std::string eval_text(const NamedValues& result) const override { return samples_eval_text(result); }
  double score(const NamedValues& result) const override;
  std::map<std::string, std::string> signature() const override;
  std::map<std::string, std::string> source_digests() const override;
  std::string next_batch_digest(int64_t step) override;

 protected:
  // Opens the data. Error(data) or Error(usage) where they do not fit.
  SampleTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm);

  // After each load_batch, outside of a captured step.
  virtual void batch_loaded(int64_t /*step*/) {}

  data::VectorStreamOptions stream_options() const;
  data::VectorBatch batch_part(int64_t micro_batch) const;
  double micro_batch_share() const;   // of the global batch
  int64_t evaluation_batch() const;   // rows
  std::string describe_data() const;  // lines of describe()
  // Adds the gradients of a micro-batch's mean loss to the buffers of the parameters, which are in the same order.
  // Undefined: zero.
  void add_gradients(const nn::ParameterSet& parameters, const std::vector<at::Tensor>& gradients,
                     const at::Tensor& loss_scale) const;
  void visit_position(StateVisitor& visitor);

  const config::Config& config_;
  Runtime runtime_;
  std::shared_ptr<parallel::Comm> comm_;
  ContrastiveData data_;
  int64_t rows_ = 0, micro_batch_size_ = 0;  // this rank's of the global batch; of a micro-batch
  std::vector<std::string> metric_names_;    // "loss" is the first
  // At fixed addresses.
  data::VectorBatch batch_;  // this rank's rows
  at::Tensor counter_;       // 0-dim int64: the step, for random perturbations

 private:
  mutable std::string train_digest_;
  std::unique_ptr<data::VectorStream> stream_;  // opened at the first step, at the position a resume may have set
  int64_t position_ = 0;                        // registered: samples used so far
  StagedBatches<data::VectorPicks> staged_;
};

}  // namespace hrm::tasks

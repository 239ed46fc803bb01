#pragma once
// The contrastive task: a geometric memory that learns without autograd (objectives/contrastive.h), on vectors with a
// class or on bytes of text.
//
// A step is one window: the memory is prepared, a batch relaxes freely, then nudged, and the difference of statistics
// is the gradient. The optimizer's update is followed by projections, the ring of episodes and the field.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/vectors.h"
#include "hrm/models/geometric_memory.h"
#include "hrm/objectives/contrastive.h"
#include "hrm/parallel/comm.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/contrastive_data.h"
#include "hrm/tasks/staged_batches.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

// The memory that a configuration and the data's sizes describe.
models::GeometricMemoryOptions memory_options(const config::ContrastiveConfig& config, int64_t features,
                                              int64_t classes);
objectives::ContrastiveOptions contrastive_options(const config::ContrastiveConfig& config);
// contrastive.bank_dtype on a device.
bool half_values(const config::ContrastiveConfig& config, at::Device device);

// Mean cross-entropy and accuracy on all rows of a source (`loss`, `accuracy`, `rows`; of text `bits_per_token`),
// `batch` rows at a time. Ranks share the rows.
NamedValues evaluate_memory(const models::GeometricMemory& memory, const config::ContrastiveConfig& config,
                            const ContrastiveSource& source, int64_t batch, at::Device device, parallel::Comm& comm,
                            const std::function<void(const EvalProgress&)>& progress);
std::string memory_eval_text(const NamedValues& result);

class ContrastiveTask : public Task {
 public:
  // Opens the data, builds the memory. Error(data) or Error(usage) where they do not fit.
  ContrastiveTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm = nullptr);

  nn::ParameterSet& parameters() override { return memory_->parameter_set(); }
  optim::GroupDefaults group_defaults() const override;
  const std::vector<std::string>& metric_names() const override { return metric_names_; }
  NamedValues summarize(const std::vector<double>& sums, int64_t steps) const override;
  at::Tensor step_loss(const at::Tensor& sums) const override;
  std::string progress_text(const NamedValues& summary) const override;
  double samples_per_epoch() const override { return static_cast<double>(data_.train->rows()); }
  double flops_per_step() const override;
  double load_batch(int64_t step, double lr_factor) override;
  std::vector<at::Tensor> step_inputs() const override { return {batch_.inputs, batch_.labels, counter_}; }
  void forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) override;
  void update_extra(const at::Tensor& skip) override;
  void skip_batches(int64_t count) override;
  std::string why_not_captured() const override;
  bool can_evaluate() const override { return data_.test != nullptr; }
  NamedValues evaluate(const std::function<void(const EvalProgress&)>& progress) override;
  std::string eval_text(const NamedValues& result) const override { return memory_eval_text(result); }
  double score(const NamedValues& result) const override;
  std::map<std::string, std::string> signature() const override;
  std::map<std::string, std::string> source_digests() const override;
  std::string next_batch_digest(int64_t step) override;
  std::string describe() const override;
  void visit_state(StateVisitor& visitor) override;

  models::GeometricMemory& memory() { return *memory_; }

 private:
  data::VectorStreamOptions stream_options() const;
  void measure_cosine();
  at::Tensor metrics_of(const objectives::ContrastiveResult& result, double share, bool first) const;
  void move_field(const at::Tensor& skip);
  void commit_episodes(const at::Tensor& skip);

  const config::Config& config_;
  Runtime runtime_;
  std::shared_ptr<parallel::Comm> comm_;
  ContrastiveData data_;
  std::shared_ptr<models::GeometricMemory> memory_;
  int64_t rows_ = 0, micro_batch_size_ = 0;  // this rank's of the global batch; of a micro-batch
  std::vector<std::string> metric_names_;
  mutable std::string train_digest_;

  std::unique_ptr<data::VectorStream> stream_;  // opened at the first step, at the position a resume may have set
  int64_t position_ = 0;                        // registered: samples used so far
  StagedBatches<data::VectorPicks> staged_;

  // At fixed addresses.
  data::VectorBatch batch_;  // this rank's rows
  at::Tensor counter_;       // 0-dim int64: the step, for random perturbations
  at::Tensor cosine_;        // 0-dim float64: the last one measured
  models::GeometricMemory::Window window_;
  objectives::ContrastiveResult last_;                       // of the step's first micro-batch
  at::Tensor field_before_, angles_before_, metric_before_;  // as the window read them
  // Registered: momentum and equilibrium of the field, its history, and what the last update changed.
  at::Tensor momentum_, equilibrium_, history_, changes_;
};

}  // namespace hrm::tasks

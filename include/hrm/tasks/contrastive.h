#pragma once
// The contrastive task: a geometric memory that learns without autograd (objectives/contrastive.h), on vectors with a
// class or on tokens of text.
//
// A step is one window: the memory is prepared, a batch relaxes freely, then nudged, and the difference of statistics
// is the gradient. The optimizer's update is followed by projections, the ring of episodes and the field.

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/models/geometric_memory.h"
#include "hrm/objectives/contrastive.h"
#include "hrm/parallel/comm.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/contrastive_progress.h"
#include "hrm/tasks/sample_task.h"

namespace hrm::tasks {

// The memory that a configuration and the data's sizes describe.
models::GeometricMemoryOptions memory_options(const config::ContrastiveConfig& config, int64_t features,
                                              int64_t classes);
objectives::ContrastiveOptions contrastive_options(const config::ContrastiveConfig& config);
// Names of the sums of a step, see ContrastiveTask::metric_names().
std::vector<std::string> contrastive_metric_names(const config::ContrastiveConfig& config, bool is_text);
// Floating-point operations of the phases of a sample.
double contrastive_flops_per_sample(const config::ContrastiveConfig& config, int64_t classes);
optim::GroupDefaults contrastive_group_defaults();
// contrastive.bank_dtype on a device.
bool half_values(const config::ContrastiveConfig& config, at::Device device);

// evaluate_samples() of the free equilibrium.
NamedValues evaluate_memory(const models::GeometricMemory& memory, const config::ContrastiveConfig& config,
                            const ContrastiveSource& source, int64_t batch, at::Device device, parallel::Comm& comm,
                            const std::function<void(const EvalProgress&)>& progress);

class ContrastiveTask : public SampleTask {
 public:
  // Opens the data, builds the memory. Error(data) or Error(usage) where they do not fit.
  ContrastiveTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm = nullptr);

  nn::ParameterSet& parameters() override { return memory_->parameter_set(); }
  optim::GroupDefaults group_defaults() const override { return contrastive_group_defaults(); }
  NamedValues summarize(const std::vector<double>& sums, int64_t steps) const override;
  double flops_per_step() const override;
  void forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) override;
  void update_extra(const at::Tensor& skip) override;
  // 1: a window that is free only, see contrastive.nudge_every_windows.
  int64_t graph_key() const override { return free_only_ ? 1 : 0; }
  void finish_step() override;
  NamedValues evaluate(const std::function<void(const EvalProgress&)>& progress) override;
  std::string describe() const override;
  void visit_state(StateVisitor& visitor) override;

  models::GeometricMemory& memory() { return *memory_; }

 private:
  void batch_loaded(int64_t step) override;
  void measure_cosine();
  at::Tensor metrics_of(const objectives::ContrastiveResult& result, bool first) const;
  void move_field(const at::Tensor& skip);
  void commit_episodes(const at::Tensor& skip);

  std::shared_ptr<models::GeometricMemory> memory_;

  bool free_only_ = false;  // of the window that load_batch announced
  RelaxationProgress progress_;

  // At fixed addresses.
  at::Tensor cosine_;  // 0-dim float32: the last one measured
  // (M) float64: what each metric counts in the step's first micro-batch, and in the others.
  std::array<at::Tensor, 2> metric_scales_;
  models::GeometricMemory::Window window_;
  objectives::ContrastiveResult last_;                       // of the step's first micro-batch
  at::Tensor field_before_, angles_before_, metric_before_;  // as the window read them
  // Registered: momentum and equilibrium of the field, its history, and what the last update changed.
  at::Tensor momentum_, equilibrium_, history_, changes_;
};

}  // namespace hrm::tasks

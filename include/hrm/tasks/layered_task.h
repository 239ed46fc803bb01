#pragma once
// contrastive.network=layered: a network with symmetric weights (models/layered_energy.h) that learns without autograd.
//
// A step relaxes a batch freely, then nudged; the difference of statistics is the gradient. The optimizer's update is
// followed by the projection that keeps one equilibrium.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "hrm/models/layered_energy.h"
#include "hrm/nn/parameter.h"
#include "hrm/tasks/sample_task.h"

namespace hrm::tasks {

// The network and the nudge that a configuration and the data's sizes describe.
models::LayeredEnergyOptions layered_options(const config::ContrastiveConfig& config, int64_t features,
                                             int64_t classes);
models::Nudging layered_nudging(const config::ContrastiveConfig& config);

// evaluate_samples() of the free equilibrium; with contrastive.rule=feedforward of the network without feedback.
NamedValues evaluate_layered(const models::LayeredEnergy& model, const config::ContrastiveConfig& config,
                             const ContrastiveSource& source, int64_t batch, at::Device device, parallel::Comm& comm,
                             const std::function<void(const EvalProgress&)>& progress);

class LayeredTask : public SampleTask {
 public:
  // Opens the data, builds the network. Error(data) or Error(usage) where they do not fit.
  LayeredTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm = nullptr);

  nn::ParameterSet& parameters() override { return parameter_set_; }
  optim::GroupDefaults group_defaults() const override;
  double flops_per_step() const override;
  void forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) override;
  void update_extra(const at::Tensor& skip) override;
  std::string why_not_captured() const override;
  NamedValues evaluate(const std::function<void(const EvalProgress&)>& progress) override;
  std::string describe() const override;
  void visit_state(StateVisitor& visitor) override;

  models::LayeredEnergy& model() { return *model_; }
  // (1 + hidden layers) float64, the last ones measured: cosines with the gradient of backprop, of all hidden layers
  // together and of each, weights and biases joined.
  const at::Tensor& cosines() const { return cosines_; }

 private:
  bool nudged() const;
  void batch_loaded(int64_t step) override;
  void measure_cosines();
  models::Contrast contrast(const data::VectorBatch& rows) const;
  at::Tensor metrics_of(const models::Contrast& result, bool first) const;

  std::shared_ptr<models::LayeredEnergy> model_;
  nn::ParameterSet parameter_set_;
  at::Tensor cosines_;      // at a fixed address
  at::Tensor contraction_;  // 0-dim float32 at a fixed address: of the weights that the step reads
};

}  // namespace hrm::tasks

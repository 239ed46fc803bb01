#pragma once
// Single steps of a small polychromic training, to compare their gradients.

#include <ATen/ATen.h>

#include <algorithm>

#include "support/overrides.h"
#include "support/paths.h"
#include "train/small_polychromic.h"

namespace hrm::testing {

using test::Overrides;
using test::with;

inline const std::string kEncoder =
    std::string("polychromic.diversity_encoder_model=") + test::source_dir() + "/tests/fixtures/bert_embed";
inline const Overrides kSemantic{"polychromic.diversity_metric=semantic", kEncoder};
inline const Overrides kGrpo{
    "grpo.start_step=1",          "grpo.rewards=answer,length*0.5,finished", "grpo.num_generations=4",
    "polychromic.objective=none", "polychromic.max_generation_length=100",   "grpo.max_completion_length=8"};
// Several steps from one batch of answers, long enough to differ in what they are worth.
inline const Overrides kAgain{"grpo.start_step=1",
                              "grpo.rewards=length",
                              "grpo.num_generations=4",
                              "polychromic.objective=none",
                              "grpo.num_iterations=3",
                              "polychromic.max_generation_length=100",
                              "grpo.max_completion_length=24"};

// Rewards that differ: of a model that knows nothing some answers have a letter and others have none.
inline const Overrides kLetters =
    with(kGrpo, {"grpo.rewards=answer,format*0.5,finished", "grpo.reward_pattern=(?s).*[a-z].*"});

struct Step {
  std::vector<at::Tensor> gradients;
  at::Tensor sums;
  double flops = 0;
};

// An adapter that does nothing yet has no gradient in A.
inline void move_adapters(tasks::PolychromicTask& task, double by) {
  const at::NoGradGuard no_grad;
  for (const nn::Parameter& parameter : task.parameters().all()) {
    if (parameter.name.find("lora_B") != std::string::npos) parameter.master.detach().add_(by);
  }
  task.parameters().refresh_compute();
}

inline std::vector<at::Tensor> gradients_of(tasks::PolychromicTask& task) {
  std::vector<at::Tensor> gradients;
  for (const nn::Parameter& parameter : task.parameters().all()) {
    gradients.push_back(parameter.master.grad().detach().clone());
  }
  return gradients;
}

// One step's gradients, in float64 for comparisons, and its metric sums.
inline Step step_of(const Overrides& overrides, int64_t step = 1) {
  SmallPolychromic run(fresh_folder("step"), overrides);
  tasks::PolychromicTask& task = run.task;
  move_adapters(task, 0.05);
  const at::NoGradGuard no_grad;
  task.load_batch(step, 1);
  task.prepare_step(step);
  Step out{{}, at::zeros({static_cast<int64_t>(task.metric_names().size())}, at::kDouble)};
  const at::AutoGradMode records(true);
  for (int64_t i = 0; i < task.plan().micro_batches; ++i) task.forward_backward(i, {}, out.sums);
  out.gradients = gradients_of(task);
  out.flops = task.flops_per_step();
  return out;
}

// Whether there is anything to compare.
inline bool has_gradients(const Step& step) {
  return std::any_of(step.gradients.begin(), step.gradients.end(),
                     [](const at::Tensor& gradient) { return gradient.abs().max().item<double>() > 1e-6; });
}

inline double largest_gap(const Step& a, const Step& b) {
  double gap = 0;
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    const double scale = std::max(1e-4, a.gradients[i].abs().max().item<double>());
    gap = std::max(gap, (a.gradients[i] - b.gradients[i]).abs().max().item<double>() / scale);
  }
  return gap;
}

}  // namespace hrm::testing

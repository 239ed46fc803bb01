#pragma once
// Whole training steps at the width of the recipes, one way of computing them beside another.

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "train/small_run.h"

namespace hrm::testing {

// The state after two steps; with a `seed` all weights differ by at most half a unit in bfloat16's last place before.
inline std::map<std::string, at::Tensor> after_two_steps(const std::string& device,
                                                         const std::vector<std::string>& more, uint64_t seed = 0) {
  std::vector<std::string> all = {"runtime.device=" + device, "runtime.deterministic=true",
                                  "model.hidden_size=512",    "model.num_heads=8",
                                  "model.H_cycles=2",         "train.global_batch_size=16",
                                  "optim.name=adamw",         "optim.eps=1e-3",
                                  "optim.puzzle_emb_lr=0",    "data.test="};
  all.insert(all.end(), more.begin(), more.end());
  SmallRun run(fresh_folder("runs"), all);
  if (seed > 0) {
    const at::NoGradGuard no_grad;
    auto generator = at::detail::createCPUGenerator(seed);
    for (auto& item : run.task.model().named_parameters()) {
      at::Tensor weight = item.value();
      const at::Tensor change = (at::rand(weight.sizes(), generator) - 0.5) * std::exp2(-8);
      weight.mul_(1 + change.to(weight.device()));
    }
  }
  run.trainer.start_fresh();
  run.trainer.run_steps(2);
  return run.tensors();
}

// The state that shows all of a step: what the recursions gave, and the gradients as the optimizer averaged them.
inline bool tells_of_the_step(const std::string& name) {
  return name == "carry.z_H" || name == "carry.z_L" || name.ends_with(".exp_avg");
}

inline double relative_distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor want = b.to(at::kCPU, at::kDouble);
  return (a.to(at::kCPU, at::kDouble) - want).norm().item<double>() / (want.norm().item<double>() + 1e-30);
}

}  // namespace hrm::testing

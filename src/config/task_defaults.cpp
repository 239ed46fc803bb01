#include "task_defaults.h"

#include <algorithm>

namespace hrm::config {
namespace {

constexpr int64_t kWarmup = 20;

}  // namespace

const std::vector<TaskDefault>& polychromic_defaults() {
  static const std::vector<TaskDefault> all{
      {"optim.name", [](const Config&) { return Value(std::string("adamw")); }, "adamw"},
      {"optim.lr", [](const Config& c) { return Value(c.lora.r > 0 ? 2e-4 : 2e-5); },
       "2e-4 with an adapter, 2e-5 where all weights are trained"},
      {"optim.beta2", [](const Config&) { return Value(0.999); }, "0.999"},
      {"optim.weight_decay", [](const Config&) { return Value(0.01); }, "0.01"},
      {"optim.grad_clip", [](const Config&) { return Value(1.0); }, "1"},
      {"optim.warmup_steps",
       [](const Config& c) { return Value(c.train.steps > 0 ? std::min(kWarmup, c.train.steps / 10) : kWarmup); },
       "20, but no more than a tenth of train.steps"},
      {"optim.min_ratio", [](const Config&) { return Value(0.1); }, "0.1"},
      {"train.global_batch_size", [](const Config&) { return Value(int64_t{16}); }, "16"},
  };
  return all;
}

}  // namespace hrm::config

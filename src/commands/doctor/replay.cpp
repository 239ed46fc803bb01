// hrm_train doctor --replay: makes the next step of a dump again and says where it stops being finite.

#include <ATen/ATen.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/commands/commands.h"
#include "hrm/config/load.h"
#include "hrm/ops/start.h"
#include "hrm/tasks/puzzle_inference.h"
#include "hrm/tasks/registry.h"
#include "hrm/train/trainer.h"

namespace hrm::commands {
namespace {

using Json = nlohmann::ordered_json;

// How many elements of a tensor are not finite, and the largest of the others.
struct Health {
  int64_t size = 0, nonfinite = 0;
  double largest = 0;
};

Health health_of(const at::Tensor& tensor) {
  Health health{.size = tensor.numel()};
  if (!tensor.is_floating_point() || tensor.numel() == 0) return health;
  const at::Tensor values = tensor.detach().to(at::kCPU, at::kDouble);
  const at::Tensor finite = at::isfinite(values);
  health.nonfinite = health.size - finite.sum().item<int64_t>();
  health.largest = values.abs().masked_fill(finite.logical_not(), 0).max().item<double>();
  return health;
}

// Those tensors that are not finite, by name, and the largest element of all.
class Report {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    const Health health = health_of(tensor);
    ++tensors_;
    if (health.nonfinite > 0) bad_.emplace_back(name, health);
    if (health.largest > largest_) {
      largest_ = health.largest;
      largest_name_ = name;
    }
  }
  bool finite() const { return bad_.empty(); }
  Json json() const {
    Json json{{"tensors", tensors_}, {"not_finite", Json::array()}, {"largest", largest_}, {"in", largest_name_}};
    for (const auto& [name, health] : bad_) {
      json["not_finite"].push_back({{"name", name}, {"elements", health.nonfinite}, {"of", health.size}});
    }
    return json;
  }
  std::string text() const {
    if (finite()) return cat("finite, the largest of size ", largest_, " in ", largest_name_);
    std::string text = cat("NOT finite in ", bad_.size(), " of ", tensors_, ":");
    constexpr size_t kShown = 5;
    for (size_t i = 0; i < std::min(bad_.size(), kShown); ++i) {
      const auto& [name, health] = bad_[i];
      text += cat(i == 0 ? " " : ", ", name, " (", health.nonfinite, " of ", health.size, ")");
    }
    return bad_.size() > kShown ? text + ", ..." : text;
  }

 private:
  int64_t tensors_ = 0;
  double largest_ = 0;
  std::string largest_name_ = "none";
  std::vector<std::pair<std::string, Health>> bad_;
};

Report report_state(Stateful& object, StateRole role) {
  Report report;
  for (const TensorEntry& entry : list_state(object).tensors) {
    if (entry.role == role) report.add(entry.name, entry.tensor);
  }
  return report;
}

}  // namespace

int run_replay(const ReplayOptions& options) {
  std::vector<std::string> overrides = options.overrides;
  overrides.emplace_back("runtime.cuda_graphs=false");
  const tasks::StoredModel stored = tasks::open_stored_model(options.dump, overrides);
  const config::Config& config = stored.config;
  const Runtime runtime = ops::start_runtime_and_ops(config);
  const std::unique_ptr<tasks::Task> owned = tasks::make_task(config, runtime);
  tasks::Task& task = *owned;
  train::Trainer trainer(config, stored.meta.config_json, runtime, task, /*run_dir=*/"");
  trainer.resume(stored.folder, stored.meta.info);

  const Report weights = report_state(task, StateRole::weight), carry = report_state(task, StateRole::carry);
  const Report moments = report_state(trainer, StateRole::optimizer);
  try {
    trainer.run_steps(1);
  } catch (const Error& error) {
    if (error.code() != ExitCode::diverged) throw;  // that is what is looked for
  }
  Report gradients;
  for (const nn::Parameter& parameter : task.parameters().all()) {
    gradients.add(parameter.name, parameter.master.grad());
  }
  const bool reproduced = !gradients.finite();
  const char* verdict =
      reproduced
          ? "reproduced: this step is not finite here, either"
          : "NOT reproduced: the same step is finite here. The machine that wrote the dump computed something else: "
            "suspect its hardware, or other kernels than this machine's";
  if (options.json) {
    const Json json{{"dump", stored.folder.string()}, {"step", trainer.step()},  {"device", runtime.device_name},
                    {"weights", weights.json()},      {"carry", carry.json()},   {"optimizer", moments.json()},
                    {"gradients", gradients.json()},  {"reproduced", reproduced}};
    std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    std::cout << "step " << trainer.step() << " after " << stored.folder.string() << ", on " << runtime.device_name
              << "\n"
              << "weights    " << weights.text() << "\n"
              << "carry      " << carry.text() << "\n"
              << "optimizer  " << moments.text() << "\n"
              << "gradients  " << gradients.text() << "\n"
              << verdict << "\n";
  }
  return static_cast<int>(reproduced ? ExitCode::diverged : ExitCode::done);
}

}  // namespace hrm::commands

#pragma once
// The metrics of the polychromic task: their names, the sums of a step and the means of a window. A sum comes from the
// device, from the captured part of a step (add), or from the host, from what is sampled before it (add_host).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hrm/tasks/polychromic_plan.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

// How many steps sampled completions, by purpose, and how many learned from rewards. Values of only such steps are
// divided by their number.
inline constexpr const char *kDiversitySteps = "diversity_steps", *kRewardSteps = "reward_steps",
                            *kRewardUpdates = "reward_updates";
inline constexpr const char* kRewardPrefix = "reward/";

class PolychromicMetrics {
 public:
  // `rewards`: names of the rewards of GRPO; Error(usage) where one stands twice. `measures_diversity`: whether steps
  // that sample answers measure their diversity. `of_steps`: names of more values that each step has; they come last.
  PolychromicMetrics(const PolychromicPlan& plan, const std::vector<std::string>& rewards, bool measures_diversity,
                     const std::vector<std::string>& of_steps = {});

  const std::vector<std::string>& names() const { return names_; }
  // Its place in names(); Error(unexpected) where there is none.
  int64_t index(const std::string& name) const;

  // Adds a 0-dim value of any floating type, without its gradient, to `sums`, (metrics) float64 on the device. Queues
  // one kernel, and may be captured.
  void add(at::Tensor& sums, const std::string& name, const at::Tensor& value) const;
  // The same for the values of `of_steps`, (n) float64.
  void add_of_steps(at::Tensor& sums, const at::Tensor& values) const;

  // Sums of the host, from zero in each step. Ranks' sums are added: each rank adds its share of a mean.
  void clear_host();
  void add_host(const std::string& name, double value);
  void add_host(const NamedValues& values);
  const std::vector<double>& host() const { return host_; }  // in the order of names()

  // Means over the steps that have a value (Task::summarize); those that no step had are skipped.
  NamedValues summarize(const std::vector<double>& sums, int64_t steps) const;

 private:
  std::vector<std::string> names_;
  std::map<std::string, int64_t> index_;
  std::vector<double> host_;
  bool measures_diversity_;
  size_t first_of_steps_ = 0;
};

}  // namespace hrm::tasks

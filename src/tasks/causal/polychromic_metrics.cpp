#include "hrm/tasks/polychromic_metrics.h"

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::tasks {

PolychromicMetrics::PolychromicMetrics(const PolychromicPlan& plan, const std::vector<std::string>& rewards,
                                       bool measures_diversity, const std::vector<std::string>& of_steps)
    : names_{"loss", "cross_entropy", "tokens"}, measures_diversity_(measures_diversity) {
  if (plan.most_samples() > 0) {
    names_.insert(names_.end(), {kDiversitySteps, kRewardSteps, "diversity", "diversity_loss", "advantage",
                                 "answer_tokens", "finished"});
  }
  if (plan.grpo_from > 0) {
    names_.insert(names_.end(),
                  {kRewardUpdates, "reward", "reward_std", "zero_variance", "kl", "clip_low", "clip_high", "ratio"});
    for (const std::string& name : rewards) names_.push_back(kRewardPrefix + name);
  }
  first_of_steps_ = names_.size();
  names_.insert(names_.end(), of_steps.begin(), of_steps.end());
  for (size_t i = 0; i < names_.size(); ++i) {
    require(index_.emplace(names_[i], static_cast<int64_t>(i)).second, ExitCode::usage, "grpo.rewards names '",
            names_[i], "' twice; give it one weight");
  }
  clear_host();
}

int64_t PolychromicMetrics::index(const std::string& name) const {
  const auto found = index_.find(name);
  require(found != index_.end(), ExitCode::unexpected, "no metric '", name, "'");
  return found->second;
}

void PolychromicMetrics::add(at::Tensor& sums, const std::string& name, const at::Tensor& value) const {
  sums.select(0, index(name)).add_(value.detach());
}

void PolychromicMetrics::add_of_steps(at::Tensor& sums, const at::Tensor& values) const {
  sums.narrow(0, static_cast<int64_t>(first_of_steps_), values.numel()).add_(values);
}

void PolychromicMetrics::clear_host() {
  host_.assign(names_.size(), 0);
}

void PolychromicMetrics::add_host(const std::string& name, double value) {
  host_[static_cast<size_t>(index(name))] += value;
}

void PolychromicMetrics::add_host(const NamedValues& values) {
  for (const auto& [name, value] : values) add_host(name, value);
}

NamedValues PolychromicMetrics::summarize(const std::vector<double>& sums, int64_t steps) const {
  const auto sum = [&](const std::string& name) {
    const auto found = index_.find(name);
    return found == index_.end() ? 0 : sums[static_cast<size_t>(found->second)];
  };
  const double all = static_cast<double>(std::max<int64_t>(steps, 1)), diverse = sum(kDiversitySteps),
               rewarded = sum(kRewardSteps), updates = sum(kRewardUpdates), responses = all - updates;
  NamedValues out;
  for (size_t i = 0; i < names_.size(); ++i) {
    const std::string& name = names_[i];
    const auto is = [&](std::initializer_list<const char*> names) {
      return std::any_of(names.begin(), names.end(), [&](const char* other) { return name == other; });
    };
    double over = rewarded;  // what is not named here is of rewards
    if (is({"loss"}) || i >= first_of_steps_) over = all;
    if (is({"cross_entropy", "tokens"})) over = responses;
    if (is({"diversity_loss"})) over = diverse;
    if (is({"diversity"})) over = measures_diversity_ ? diverse + rewarded : 0;
    if (is({"advantage", "answer_tokens", "finished"})) over = diverse + rewarded;
    if (is({"kl", "clip_low", "clip_high", "ratio"})) over = updates;
    if (is({kDiversitySteps, kRewardSteps, kRewardUpdates})) over = 1;
    if (over > 0) out.emplace_back(name, sums[i] / over);
  }
  return out;
}

}  // namespace hrm::tasks

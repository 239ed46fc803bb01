#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/objectives/policy_gradient.h"
#include "hrm/objectives/rewards.h"

namespace hrm::objectives {

at::Tensor score_groups(const std::vector<std::unique_ptr<Reward>>& rewards, const std::vector<AnswerGroup>& groups) {
  size_t largest = 0;
  for (const AnswerGroup& group : groups) largest = std::max(largest, group.texts.size());
  const auto sizes = {static_cast<int64_t>(rewards.size()), static_cast<int64_t>(groups.size()),
                      static_cast<int64_t>(largest)};
  const at::Tensor scores = at::zeros(sizes, at::kDouble);
  auto* row = scores.mutable_data_ptr<double>();
  for (const auto& reward : rewards) {
    for (const AnswerGroup& group : groups) {
      const std::vector<double> values = reward->of(group);
      require(values.size() == group.texts.size(), ExitCode::unexpected, "the reward '", reward->name(), "' returned ",
              values.size(), " values for ", group.texts.size(), " completions");
      for (size_t i = 0; i < values.size(); ++i) {
        require(std::isfinite(values[i]), ExitCode::data, "the reward '", reward->name(), "' returned ", values[i],
                " for the completion '", printable_start(group.texts[i]), "'; rewards must be finite");
      }
      std::copy(values.begin(), values.end(), row);
      row += largest;
    }
  }
  return scores;
}

at::Tensor combine_rewards(const at::Tensor& rewards, const std::vector<double>& weights, RewardCombination how,
                           const at::Tensor& counts, double eps) {
  TORCH_CHECK(rewards.dim() == 3 && rewards.size(0) > 0, "combine_rewards: rewards must be (K, G, N), got ",
              rewards.sizes());
  require(static_cast<int64_t>(weights.size()) == rewards.size(0), ExitCode::usage, "there are ", rewards.size(0),
          " rewards and ", weights.size(), " weights; give one weight for each reward");
  const at::NoGradGuard no_grad;
  at::Tensor sum = at::zeros_like(rewards[0]);
  for (size_t k = 0; k < weights.size(); ++k) {
    at::Tensor values = rewards[static_cast<int64_t>(k)];
    if (how == RewardCombination::separately_normalised) {
      values = group_advantages(values, counts, AdvantageScale::group, eps).values;
    }
    sum.add_(values, weights[k]);
  }
  if (!counts.defined()) return sum;
  const at::Tensor there = at::arange(sum.size(1), counts.options()).unsqueeze(0).lt(counts.unsqueeze(1));
  return sum.masked_fill(there.logical_not(), 0);
}

}  // namespace hrm::objectives

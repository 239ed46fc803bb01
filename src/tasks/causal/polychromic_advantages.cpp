#include "hrm/tasks/polychromic_advantages.h"

#include <ATen/ATen.h>

#include "hrm/base/text.h"
#include "hrm/data/batch.h"
#include "hrm/objectives/policy_gradient.h"
#include "hrm/objectives/rewards.h"
#include "hrm/tasks/polychromic_metrics.h"

namespace hrm::tasks {
namespace {

// Each answer's share in the diversity of the sets that it belongs to.
at::Tensor marginal_advantages_of(const at::Tensor& embeddings, int64_t groups, int64_t n, int64_t subset_size) {
  const at::Tensor members = objectives::subset_members(n, subset_size);
  const at::Tensor units = embeddings.view({groups, n, -1});
  const at::Tensor distances = 1 - at::bmm(units, units.transpose(1, 2));
  const at::Tensor on_device = members.to(distances.device());
  const at::Tensor values = objectives::set_values(objectives::subset_diversity(distances, on_device), {}, on_device,
                                                   objectives::SetMode::diversity);
  return objectives::marginal_advantages(values, on_device);
}

}  // namespace

DiversityAdvantages compute_diversity_advantages(const objectives::GroupDiversity& diversity,
                                                 const at::Tensor& embeddings, const at::Tensor& empty,
                                                 objectives::RunningDiversity& running,
                                                 const config::PolychromicConfig& config, parallel::Comm& comm) {
  const int64_t groups = empty.size(0), n = empty.size(1);
  const auto all_groups = static_cast<double>(groups * comm.ranks());

  // Sum of D over all ranks, for the running mean that later steps compare with.
  at::Tensor sum = diversity.totals.sum(at::kDouble).view({1});
  const double own = sum.item<double>();
  comm.all_reduce_in_step(sum);

  const bool marginal = config.objective == config::PolychromicObjective::marginal;
  at::Tensor values = marginal ? marginal_advantages_of(embeddings, groups, n, config.subset_size)
                               : objectives::score_advantages(diversity, config.baseline, running);
  running.add(sum.select(0, 0), at::full_like(sum.select(0, 0), all_groups));

  // Nothing is gained by saying nothing.
  const at::Tensor barred = empty.to(values.device());
  at::Tensor mean_square;
  if (config.normalize_advantages) {
    mean_square = values.square().sum(at::kDouble) / (all_groups * static_cast<double>(n));
    comm.all_reduce_in_step(mean_square);
  }
  values = objectives::shape_advantages(
               values, {.normalize = config.normalize_advantages, .clip = config.advantage_clip}, barred, mean_square)
               .to(at::kFloat);
  const double loss = -config.diversity_weight * own / all_groups;
  return {.values = values,
          .metrics = {{"diversity", own / all_groups},
                      {"diversity_loss", loss},
                      {"loss", loss},
                      {"advantage", values.abs().mean().item<double>() / static_cast<double>(comm.ranks())}}};
}

at::Tensor diversity_weights(const at::Tensor& values, const at::Tensor& labels,
                             const config::PolychromicConfig& config, int64_t max_tokens, int64_t groups) {
  const at::Tensor mask = labels.ne(data::kIgnoreLabel).to(at::kFloat);
  const double Z = config.length_norm == config::LengthNorm::max ? static_cast<double>(max_tokens) : 1;
  return objectives::score_weights(values, mask, config.diversity_weight, Z,
                                   at::full({}, static_cast<double>(groups), values.options()));
}

RewardAdvantages compute_reward_advantages(const at::Tensor& rewards, const std::vector<std::string>& names,
                                           const std::vector<double>& weights, const config::GrpoConfig& config,
                                           at::Device device, parallel::Comm& comm) {
  using objectives::RewardCombination;
  const int64_t groups = rewards.size(1), n = rewards.size(2);
  const auto ranks = static_cast<double>(comm.ranks());
  const RewardCombination combination = config.reward_combination;
  const at::Tensor combined = objectives::combine_rewards(rewards, weights, combination);
  // The standard deviation of the batch is that of all ranks.
  at::Tensor all = at::zeros({groups * comm.ranks(), n}, at::kDouble);
  all.narrow(0, comm.rank() * groups, groups).copy_(combined);
  if (!comm.alone()) {
    const at::Tensor on_device = all.to(device);
    comm.all_reduce_in_step(on_device);
    all = on_device.to(at::kCPU);
  }
  const objectives::GroupAdvantages advantages = objectives::group_advantages(
      all, {},
      combination == RewardCombination::separately_normalised ? objectives::AdvantageScale::none
                                                              : config.scale_rewards);
  const auto own = [&](const at::Tensor& of_all) { return of_all.narrow(0, comm.rank() * groups, groups); };
  RewardAdvantages out{.values = own(advantages.values), .all_equal = advantages.zero_variance.all().item<bool>()};

  const at::Tensor sums = objectives::combine_rewards(rewards, weights, RewardCombination::weighted_sum);
  const auto add = [&](const std::string& name, const at::Tensor& values) {
    out.metrics.emplace_back(name, values.mean().item<double>() / ranks);
  };
  add("reward", sums);
  add("reward_std", sums.std(1));
  add("zero_variance", own(advantages.zero_variance).to(at::kDouble));
  add("advantage", out.values.abs());
  for (size_t k = 0; k < names.size(); ++k) add(kRewardPrefix + names[k], rewards[static_cast<int64_t>(k)]);
  return out;
}

}  // namespace hrm::tasks

#pragma once
// From the rewards of completions to the factors of their log-probabilities in the loss, with their metrics.
// Shapes: G prompts of this rank, N completions each, K rewards, T positions of a row. Ranks have the same G and N, and
// call these functions together. Means and deviations over the batch are over all ranks. The functions wait for the
// device, and are called before a step's captured work.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/objectives/diversity.h"
#include "hrm/parallel/comm.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

struct DiversityAdvantages {
  at::Tensor values;  // (G, N) float32 on the metric's device
  NamedValues metrics =
      {};  // diversity, diversity_loss, loss, advantage: this rank's share, so that ranks' values add up
};

// By polychromic.objective, baseline, normalize_advantages and advantage_clip (objectives/diversity.h).
// `embeddings`: (G * N, d) unit vectors of the completions, read only by the objective marginal. `empty`: (G, N) bool,
// completions without text, which must not gain. `running` is read first, then updated by this step's diversity.
DiversityAdvantages compute_diversity_advantages(const objectives::GroupDiversity& diversity,
                                                 const at::Tensor& embeddings, const at::Tensor& empty,
                                                 objectives::RunningDiversity& running,
                                                 const config::PolychromicConfig& config, parallel::Comm& comm);

// The weights (G * N, T) float32 of the labelled tokens, 0 elsewhere, as objectives::score_loss reads them. `values` as
// above; labels (G * N, T) int64; `max_tokens`: the longest answer, which polychromic.length_norm=max divides by;
// `groups`: prompts of all ranks.
at::Tensor diversity_weights(const at::Tensor& values, const at::Tensor& labels,
                             const config::PolychromicConfig& config, int64_t max_tokens, int64_t groups);

struct RewardAdvantages {
  at::Tensor values;         // (G, N) float64 on the CPU
  NamedValues metrics = {};  // reward, reward_std, zero_variance, advantage, reward/NAME of each: shares, as above
  bool all_equal = false;    // in every group of every rank all rewards are equal, so that nothing is learned
};

// By grpo.reward_combination and scale_rewards (objectives/rewards.h, policy_gradient.h). `rewards`: (K, G, N) float64
// on the CPU, with their names and weights; `device`: where the ranks exchange tensors.
RewardAdvantages compute_reward_advantages(const at::Tensor& rewards, const std::vector<std::string>& names,
                                           const std::vector<double>& weights, const config::GrpoConfig& config,
                                           at::Device device, parallel::Comm& comm);

}  // namespace hrm::tasks

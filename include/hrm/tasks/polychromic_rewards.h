#pragma once
// The rewards of GRPO as a configuration names them, and completions as rewards read them.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/objectives/rewards.h"
#include "hrm/tasks/answer_sampler.h"

namespace hrm::tasks {

// grpo.rewards: "answer*2,length" -> {("answer", 2), ("length", 1)}. Error(usage) for a weight that is not a number.
std::vector<std::pair<std::string, double>> weighted_reward_names(const std::string& rewards);

struct WeightedRewards {
  std::vector<std::unique_ptr<objectives::Reward>> rewards;
  std::vector<double> weights;  // one of each

  std::vector<std::string> names() const;
};

// Those of grpo.rewards, each with the options that are its own, and diversity where grpo.diversity_weight is above 0.
// Throws as objectives::make_reward.
WeightedRewards make_rewards(const config::GrpoConfig& config);

// Whether a reward of grpo.rewards reads the diversity of answers, or embeddings of prompts and answers.
bool rewards_need_diversity(const config::GrpoConfig& config);
bool rewards_need_embeddings(const config::GrpoConfig& config);

// A prompt and the right answers to it.
struct AskedPrompt {
  std::string text;
  std::vector<std::string> references;
};

// What was measured of G prompts with N answers each, on the CPU. Undefined where nothing was.
struct MeasuredAnswers {
  at::Tensor diversity;          // (G, N) float64: objectives::GroupDiversity::rows
  at::Tensor embeddings;         // (G, N, d) float32
  at::Tensor prompt_embeddings;  // (G, d) float32, defined where embeddings is
};

// The G groups that objectives::score_groups reads; an empty answer has no diversity.
std::vector<objectives::AnswerGroup> answer_groups(const std::vector<AskedPrompt>& prompts, const Answers& answers,
                                                   const MeasuredAnswers& measured = {});

}  // namespace hrm::tasks

#include "hrm/tasks/polychromic_rewards.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::tasks {
namespace {

// Each reward takes its own options alone.
objectives::RewardOptions reward_options(const std::string& name, const config::GrpoConfig& g) {
  objectives::RewardOptions options{.name = name};
  if (name == "format") options.pattern = g.reward_pattern;
  if (name == "answer") options.first_line = g.reward_first_line;
  if (name == "learned") options.head = g.reward_head;
  if (name == "overlong") {
    options.max_tokens = g.max_completion_length;
    options.margin = std::max<int64_t>(1, g.max_completion_length / 5);
  }
  return options;
}

}  // namespace

std::vector<std::pair<std::string, double>> weighted_reward_names(const std::string& rewards) {
  std::vector<std::pair<std::string, double>> out;
  for (const std::string& part : split_list(rewards)) {
    const size_t star = part.find('*');
    double weight = 1;
    if (star != std::string::npos) {
      size_t used = 0;
      const std::string number = part.substr(star + 1);
      try {
        weight = std::stod(number, &used);
      } catch (const std::exception&) {
        used = 0;
      }
      require(used == number.size() && used > 0 && std::isfinite(weight), ExitCode::usage, "grpo.rewards: '",
              printable_start(part), "' has no weight behind the star; write e.g. answer*2");
    }
    out.emplace_back(part.substr(0, star), weight);
  }
  return out;
}

std::vector<std::string> WeightedRewards::names() const {
  std::vector<std::string> out;
  for (const auto& reward : rewards) out.push_back(reward->name());
  return out;
}

WeightedRewards make_rewards(const config::GrpoConfig& config) {
  WeightedRewards out;
  const auto add = [&](const objectives::RewardOptions& options, double weight) {
    out.rewards.push_back(objectives::make_reward(options));
    out.weights.push_back(weight);
  };
  for (const auto& [name, weight] : weighted_reward_names(config.rewards)) add(reward_options(name, config), weight);
  if (config.diversity_weight > 0) add({.name = "diversity"}, config.diversity_weight);
  return out;
}

bool rewards_need_diversity(const config::GrpoConfig& config) {
  return config.diversity_weight > 0 || config.rewards.find("diversity") != std::string::npos;
}

bool rewards_need_embeddings(const config::GrpoConfig& config) {
  const auto named = [&](const char* name) { return config.rewards.find(name) != std::string::npos; };
  return named("learned") || named("relevance") || named("heuristic");
}

std::vector<objectives::AnswerGroup> answer_groups(const std::vector<AskedPrompt>& prompts, const Answers& answers,
                                                   const MeasuredAnswers& measured) {
  std::vector<objectives::AnswerGroup> groups;
  for (size_t g = 0; g < prompts.size(); ++g) {
    const auto group = static_cast<int64_t>(g);
    objectives::AnswerGroup out{.prompt = prompts[g].text, .texts = {}, .references = prompts[g].references};
    for (int64_t i = 0; i < answers.samples; ++i) {
      const auto row = static_cast<size_t>(group * answers.samples + i);
      out.texts.push_back(answers.texts[row]);
      out.tokens.push_back(static_cast<int64_t>(answers.ids[row].size()));
      out.finished.push_back(answers.finished[row]);
      // Nothing is gained by saying nothing.
      if (measured.diversity.defined()) {
        out.diversity.push_back(out.texts.back().empty() ? 0 : measured.diversity[group][i].item<double>());
      }
    }
    if (measured.embeddings.defined()) {
      out.embeddings = measured.embeddings[group];
      out.prompt_embedding = measured.prompt_embeddings[group];
    }
    groups.push_back(std::move(out));
  }
  return groups;
}

}  // namespace hrm::tasks

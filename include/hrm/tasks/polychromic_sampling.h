#pragma once
// The sampling phase of a polychromic step, before its captured work. Completions of a batch's prompts are sampled,
// measured or rewarded, and written to where the step learns from them. Waits for the device.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/chat_batches.h"
#include "hrm/data/chat_template.h"
#include "hrm/objectives/diversity.h"
#include "hrm/parallel/comm.h"
#include "hrm/runtime/device.h"
#include "hrm/state/registry.h"
#include "hrm/tasks/answer_diversity.h"
#include "hrm/tasks/answer_sampler.h"
#include "hrm/tasks/causal_lm.h"
#include "hrm/tasks/polychromic_answers.h"
#include "hrm/tasks/polychromic_data.h"
#include "hrm/tasks/polychromic_metrics.h"
#include "hrm/tasks/polychromic_plan.h"
#include "hrm/tasks/polychromic_rewards.h"
#include "hrm/tasks/polychromic_times.h"

namespace hrm::tasks {

class PolychromicSampling {
 public:
  // Opens the sentence encoder where a metric or a reward needs one, and makes the rewards; throws as what does. All
  // arguments must live as long.
  PolychromicSampling(const config::Config& config, const Runtime& runtime, const PolychromicPlan& plan, CausalLm& lm,
                      const data::ChatEncoder& chat, const PolychromicData& data, parallel::Comm& comm);

  bool samples() const { return sampler_ != nullptr; }  // whether any step does
  bool measures_diversity() const { return diversity_ != nullptr; }
  std::vector<std::string> reward_names() const { return rewards_.names(); }

  // Of a step of kind diversity or rewards. What is sampled depends on run.seed, the step and a prompt's place in the
  // global batch. Writes rows, and weights or advantages, into `answers` and the metrics of the host into `metrics`.
  SamplingTimes sample(int64_t step, PolychromicKind kind, const data::ChatBatch& batch, const AnswerLayout& layout,
                       AnswerBatch& answers, PolychromicMetrics& metrics);

  std::string describe() const;  // "semantic, by ...", of the diversity metric
  void visit_state(StateVisitor& visitor);

 private:
  void learn_diversity(const Answers& sampled, AnswerBatch& answers, PolychromicMetrics& metrics);
  void learn_rewards(const Answers& sampled, const std::vector<int64_t>& examples, AnswerBatch& answers,
                     PolychromicMetrics& metrics);

  const config::Config& config_;
  at::Device device_;
  const PolychromicPlan& plan_;
  const PolychromicData& data_;
  parallel::Comm& comm_;
  std::unique_ptr<AnswerDiversity> diversity_;  // null where nothing measures it
  std::unique_ptr<AnswerSampler> sampler_;      // null where no step samples
  WeightedRewards rewards_;
  objectives::RunningDiversity running_;  // registered
  int64_t level_steps_ = 0;               // of this process, in which all rewards of each prompt were equal
};

}  // namespace hrm::tasks

#include "hrm/tasks/polychromic_sampling.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "hrm/base/log.h"
#include "hrm/runtime/phase_clock.h"
#include "hrm/tasks/polychromic_advantages.h"

namespace hrm::tasks {
namespace {

// (answers) bool on the CPU: whether there is no text.
at::Tensor empty_texts(const Answers& answers) {
  const at::Tensor out = at::empty({static_cast<int64_t>(answers.texts.size())}, at::kBool);
  std::transform(answers.texts.begin(), answers.texts.end(), out.data_ptr<bool>(),
                 [](const std::string& text) { return text.empty(); });
  return out;
}

SamplingOptions sampling_of(const config::Config& config, PolychromicKind kind) {
  const config::PolychromicConfig& p = config.polychromic;
  const config::GrpoConfig& g = config.grpo;
  return kind == PolychromicKind::rewards
             ? SamplingOptions{g.temperature, g.top_k, g.top_p, g.min_p}
             : SamplingOptions{p.diversity_temperature, p.diversity_top_k, p.diversity_top_p, p.diversity_min_p};
}

}  // namespace

PolychromicSampling::PolychromicSampling(const config::Config& config, const Runtime& runtime,
                                         const PolychromicPlan& plan, CausalLm& lm, const data::ChatEncoder& chat,
                                         const PolychromicData& data, parallel::Comm& comm)
    : config_(config), device_(runtime.device), plan_(plan), data_(data), comm_(comm) {
  running_ = objectives::make_running_diversity(device_);
  if (plan.most_samples() == 0) return;
  const bool measures = plan.samples_for_diversity || rewards_need_diversity(config.grpo);
  if (measures || (plan.grpo_from > 0 && rewards_need_embeddings(config.grpo))) {
    diversity_ = std::make_unique<AnswerDiversity>(config.polychromic, device_, runtime.compute_dtype);
  }
  const int64_t asked = config.polychromic.generation_batch;
  const int64_t most = asked > 0 ? asked : device_.is_cuda() ? 256 : 64;
  sampler_ = std::make_unique<AnswerSampler>(*lm.model, lm.lora.get(), chat, lm.facts.eos_ids,
                                             std::min(most, generation_bucket(plan.most_samples())),
                                             causal_positions(config, lm.facts), config.runtime.cuda_graphs);
  if (plan.grpo_from > 0) rewards_ = make_rewards(config.grpo);
}

SamplingTimes PolychromicSampling::sample(int64_t step, PolychromicKind kind, const data::ChatBatch& batch,
                                          const AnswerLayout& layout, AnswerBatch& answers,
                                          PolychromicMetrics& metrics) {
  if (PhaseClock* clock = PhaseClock::current()) clock->end(Phase::data);
  const PhaseRange range(Phase::generate, RangeKind::sample);
  const bool rewards = kind == PolychromicKind::rewards;
  AnswerOptions options{.samples = plan_.samples(kind),
                        .max_new_tokens = plan_.tokens(kind),
                        .sampling = sampling_of(config_, kind),
                        .seed = static_cast<uint64_t>(config_.run.seed)};
  std::vector<std::vector<int32_t>> prompts;
  std::vector<int64_t> examples;
  for (int64_t micro = 0; micro < plan_.micro_batches; ++micro) {
    for (int64_t i = 0; i < plan_.prompts(kind); ++i) {
      const int64_t row = micro * plan_.micro_rows + i;
      examples.push_back(batch.examples[static_cast<size_t>(row)]);
      prompts.push_back(data_.example(examples.back()).prompt_ids);
      // By the place in the global batch, whatever ranks and micro-batches it is cut into.
      const int64_t place = (step - 1) * config_.train.global_batch_size + comm_.rank() * plan_.rows + row;
      options.keys.push_back(static_cast<uint64_t>(place));
    }
  }
  const Answers sampled = sampler_->sample(prompts, options);
  answers.write(prompts, sampled, layout, rewards && config_.grpo.mask_truncated_completions, comm_);
  if (rewards) {
    learn_rewards(sampled, examples, answers, metrics);
  } else {
    learn_diversity(sampled, answers, metrics);
  }
  const auto ranks = static_cast<double>(comm_.ranks());
  const auto finished = static_cast<double>(std::count(sampled.finished.begin(), sampled.finished.end(), true));
  metrics.add_host("answer_tokens", static_cast<double>(sampled.tokens()));
  metrics.add_host("finished", finished / static_cast<double>(sampled.texts.size()) / ranks);
  if (comm_.main()) metrics.add_host(rewards ? kRewardSteps : kDiversitySteps, 1);
  SamplingTimes times{.merge_ms = sampler_->merge_ms(),
                      .prefill_ms = sampler_->prefill_ms(),
                      .decode_ms = sampler_->decode_ms(),
                      .answer_tokens = sampled.tokens()};
  for (const std::vector<int32_t>& prompt : prompts) times.prompt_tokens += static_cast<int64_t>(prompt.size());
  if (diversity_) {
    times.encode_ms = diversity_->encode_ms();
    times.diversity_ms = diversity_->metric_ms();
    times.encoded_tokens = diversity_->encoded_tokens();
  }
  return times;
}

void PolychromicSampling::learn_diversity(const Answers& sampled, AnswerBatch& answers, PolychromicMetrics& metrics) {
  const auto groups = static_cast<int64_t>(sampled.texts.size()) / sampled.samples;
  const objectives::GroupDiversity diversity = diversity_->measure(sampled.texts, sampled.samples);
  const DiversityAdvantages advantages = compute_diversity_advantages(
      diversity, diversity_->embeddings(), empty_texts(sampled).view({groups, sampled.samples}), running_,
      config_.polychromic, comm_);
  const at::Tensor labels = answers.step_labels().narrow(0, 0, groups * sampled.samples);
  answers.set_weights(
      diversity_weights(advantages.values, labels, config_.polychromic, plan_.diverse_tokens, groups * comm_.ranks()));
  metrics.add_host(advantages.metrics);
}

void PolychromicSampling::learn_rewards(const Answers& sampled, const std::vector<int64_t>& examples,
                                        AnswerBatch& answers, PolychromicMetrics& metrics) {
  const auto groups = static_cast<int64_t>(examples.size());
  std::vector<AskedPrompt> prompts;
  for (const int64_t example : examples) {
    prompts.push_back({data_.example(example).prompt, data_.right_answers(example)});
  }
  MeasuredAnswers measured;
  if (diversity_) {
    const objectives::GroupDiversity diversity = diversity_->measure(sampled.texts, sampled.samples);
    measured.diversity = diversity.rows.to(at::kCPU, at::kDouble);
    metrics.add_host("diversity", diversity.totals.mean().item<double>() / static_cast<double>(comm_.ranks()));
    if (diversity_->embeddings().defined()) {
      measured.embeddings = diversity_->embeddings().to(at::kCPU, at::kFloat).view({groups, sampled.samples, -1});
      std::vector<std::string> texts;
      for (const AskedPrompt& prompt : prompts) texts.push_back(prompt.text);
      measured.prompt_embeddings = diversity_->embed(texts).to(at::kCPU, at::kFloat);
    }
  }
  const at::Tensor values =
      objectives::score_groups(rewards_.rewards, answer_groups(prompts, sampled, measured));  // (K, G, N)
  const RewardAdvantages advantages =
      compute_reward_advantages(values, rewards_.names(), rewards_.weights, config_.grpo, device_, comm_);
  answers.set_advantages(advantages.values.reshape({-1}));
  metrics.add_host(advantages.metrics);
  // Said at the first of such steps and at each hundredth.
  if (advantages.all_equal && level_steps_++ % 100 == 0 && comm_.main()) {
    log::info(
        "rewards      all answers to each prompt of this step got the same reward, so that it teaches nothing: its "
        "loss is 0. If that goes on, prompts are too easy or too hard, or a reward tells no two answers apart");
  }
}

std::string PolychromicSampling::describe() const {
  return diversity_->describe();
}

void PolychromicSampling::visit_state(StateVisitor& visitor) {
  if (sampler_) visitor.tensor("diversity.running", running_.state, StateRole::loop);
}

}  // namespace hrm::tasks

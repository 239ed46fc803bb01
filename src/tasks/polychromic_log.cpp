// What a run says of itself: windows of steps, their times, and the first lines of the log.
#include <ATen/ATen.h>

#include <algorithm>

#include "hrm/base/text.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/nn/frozen_weight.h"
#include "hrm/tasks/polychromic.h"
#include "tasks/polychromic_metrics.h"

namespace hrm::tasks {

at::Tensor PolychromicTask::step_loss(const at::Tensor& sums) const {
  return sums.select(0, 0).clone();
}

NamedValues PolychromicTask::summarize(const std::vector<double>& sums, int64_t steps) const {
  const auto sum = [&](const std::string& name) {
    const auto found = metric_index_.find(name);
    return found == metric_index_.end() ? 0 : sums[static_cast<size_t>(found->second)];
  };
  const double all = static_cast<double>(std::max<int64_t>(steps, 1)), diverse = sum(kDiversitySteps),
               rewarded = sum(kRewardSteps), updates = sum(kRewardUpdates), responses = all - updates;
  NamedValues out;
  for (size_t i = 0; i < metric_names_.size(); ++i) {
    const std::string& name = metric_names_[i];
    const auto is = [&](std::initializer_list<const char*> names) {
      return std::any_of(names.begin(), names.end(), [&](const char* other) { return name == other; });
    };
    double over = rewarded;  // what is not named here is of rewards
    if (is({"loss"})) over = all;
    if (is({"cross_entropy", "tokens"})) over = responses;
    if (is({"diversity_loss"})) over = diverse;
    if (is({"diversity"})) over = diversity_ ? diverse + rewarded : 0;
    if (is({"advantage", "answer_tokens", "finished"})) over = diverse + rewarded;
    if (is({"kl", "clip_low", "clip_high", "ratio"})) over = updates;
    if (is({kDiversitySteps, kRewardSteps, kRewardUpdates})) over = 1;
    if (over > 0) out.emplace_back(name, sums[i] / over);
  }
  return out;
}

NamedValues PolychromicTask::take_performance(int64_t steps, double step_ms) {
  NamedValues out;
  last_parts_.clear();
  const auto part = [&](const char* name, double ms, double tokens) {
    out.emplace_back(cat(name, "_ms"), ms);
    if (tokens > 0 && ms > 0) out.emplace_back(cat(name, "_tokens_per_s"), tokens / ms * 1e3);
    last_parts_.emplace_back(name, ms / step_ms);
  };
  const double learned = work_.steps > 0 ? work_.tokens / static_cast<double>(work_.steps) : 0;
  work_ = {.flops_before = flops_per_step()};
  if (const std::vector<double> phases = phases_.take(); !phases.empty()) {
    part("forward", phases[0], learned);
    part("backward", phases[1], learned);
    part("optimizer", phases[2], 0);
  }
  if (sampler_) {
    const auto all = static_cast<double>(steps);
    double rest = step_ms;
    const auto sampled = [&](const char* name, double ms, int64_t tokens) {
      part(name, ms / all, static_cast<double>(tokens) / all);
      rest -= ms / all;
    };
    const auto generated = static_cast<double>(times_.answer_tokens);
    last_generated_per_s_ = generated > 0 ? generated / (times_.prefill + times_.decode) * 1e3 : 0;
    sampled("merge", times_.merge, 0);
    sampled("prefill", times_.prefill, times_.prompt_tokens);
    sampled("decode", times_.decode, times_.answer_tokens);
    sampled("encode", times_.encode, times_.encoded_tokens);
    sampled("diversity", times_.measure, times_.answer_tokens);
    out.emplace_back("train_ms", rest);
    times_ = {};
  }
  std::stable_sort(last_parts_.begin(), last_parts_.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

std::string PolychromicTask::progress_text(const NamedValues& summary) const {
  const auto find = [&](const std::string& name) -> const double* {
    for (const auto& [key, value] : summary) {
      if (key == name) return &value;
    }
    return nullptr;
  };
  std::string text = cat("loss ", metrics::fixed(value_of(summary, "loss"), 3));
  const auto add = [&](const char* what, const char* name, int digits) {
    if (const double* value = find(name)) text += cat(" | ", what, " ", metrics::fixed(*value, digits));
  };
  add("cross-entropy", "cross_entropy", 3);
  add("diversity", "diversity", 3);
  add("reward", "reward", 3);
  if (last_generated_per_s_ > 0) text += cat(" | generated ", metrics::fixed(last_generated_per_s_, 0), " tok/s");
  // Shares of the step: the longest, and what is at least one in twenty. All are in metrics.jsonl.
  std::string shares;
  for (const auto& [name, share] : last_parts_) {
    if (shares.empty() || share >= 0.05)
      shares += cat(shares.empty() ? " | " : ", ", name, " ", metrics::fixed(100 * share, 0), " %");
  }
  return text + shares;
}

std::string PolychromicTask::describe() const {
  std::string text = cat("model        ", lm_.facts.model_type, " of ", config_.hf.model, ", ", lm_.facts.layers,
                         " layers, hidden ", lm_.facts.hidden_size, ", vocabulary ", lm_.facts.vocab_size,
                         config_.hf.weights == "random" ? ", random weights" : "");
  if (lm_.lora) {
    text += cat("\nadapter      rank ", config_.lora.r, ", ", lm_.model->parameter_set().count(), " parameters, on ",
                config_.lora.targets, config_.lora.dora ? ", DoRA" : "",
                config_.lora.modules_to_save.empty() ? "" : cat(", and all of ", config_.lora.modules_to_save));
    if (const nn::Nf4Memory nf4 = nn::nf4_memory(*lm_.model); nf4.elements > 0) {
      const auto mib = [](int64_t bytes) { return metrics::fixed(static_cast<double>(bytes) / 0x1p20, 1); };
      text += cat("\nbase         NF4, ", nf4.elements, " parameters of the blocks' linear layers in ", mib(nf4.bytes),
                  " MiB (", mib(2 * nf4.elements), " in bf16), and ", mib(nf4.workspace),
                  " MiB to dequantise one layer at a time");
    }
  } else {
    text += cat("\ntrained      all ", lm_.model->parameter_set().count(), " parameters");
  }
  text += cat("\ndata         ", train_->num_samples(row_len_), train_->packed() ? " packed rows of " : " examples of ",
              train_->origin(), ", template ", chat_->name(), ", up to ", config_.chat.max_length, " tokens");
  if (test_) text += cat("\nvalidation   ", test_->num_samples(row_len_), " examples of ", test_->origin());
  if (plan_.samples_for_diversity) {
    text += cat("\ndiversity    ", config_.polychromic.objective, ", weight ", config_.polychromic.diversity_weight,
                ", ", plan_.diverse_samples, " answers of up to ", plan_.diverse_tokens, " tokens to ",
                plan_.diverse_prompts * plan_.micro_batches * comm_->ranks(), " prompts every ", plan_.every,
                plan_.every == 1 ? " step" : " steps", "; ", diversity_->describe());
  }
  if (plan_.grpo_from > 0) {
    text += cat("\nrewards      from step ", plan_.grpo_from, " on: ", config_.grpo.rewards, "; ", plan_.reward_samples,
                " answers of up to ", plan_.reward_tokens, " tokens to each of ", prompts_->num_samples(row_len_),
                " prompts, loss ", config_.grpo.loss_type);
    if (plan_.reward_updates > 1) text += cat("; ", plan_.reward_updates, " updates from each batch of answers");
  }
  return text;
}

}  // namespace hrm::tasks

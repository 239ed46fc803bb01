// The captured part of a step: losses of responses and of sampled answers, forward and backward.
#include <ATen/ATen.h>

#include "hrm/data/batch.h"
#include "hrm/objectives/language.h"
#include "hrm/objectives/token_log_probs.h"
#include "hrm/runtime/nvtx.h"
#include "hrm/tasks/polychromic.h"

namespace hrm::tasks {
namespace {

// As take_performance() names them.
enum Phase { kForward, kBackward, kOptimizer };

}  // namespace

// Every rank divides by the tokens of all.
void PolychromicTask::count_tokens() {
  const at::NoGradGuard no_grad;
  const auto labelled = [&](const at::Tensor& labels) { return labels.ne(data::kIgnoreLabel).sum(); };
  at::Tensor counts = at::stack({labelled(labels_.narrow(1, 0, width_)),
                                 labelled(answer_labels_.narrow(1, 0, std::max<int64_t>(answer_width_, 1)))})
                          .to(at::kFloat);
  if (!comm_->alone()) {
    const parallel::StepClock::Wait waiting(comm_->clock());
    comm_->all_reduce(counts);
  }
  counts = counts.clamp_min(1);
  tokens_.copy_(counts[0]);
  answer_tokens_.copy_(counts[1]);
}

void PolychromicTask::add_metric(at::Tensor& metrics, const std::string& name, const at::Tensor& value) const {
  metrics.select(0, metric(name)).add_(value.detach());
}

at::Tensor PolychromicTask::response_loss(int64_t micro_batch, at::Tensor& metrics) {
  const int64_t first = micro_batch * plan_.micro_rows;
  const auto part = [&](const at::Tensor& t) {
    return t.narrow(0, first, plan_.micro_rows).narrow(1, 0, width_).contiguous();
  };
  const models::LanguageOutput output =
      lm_.model->forward({.ids = part(ids_), .documents = documents_.defined() ? part(documents_) : at::Tensor()});
  const objectives::LanguageLoss loss =
      objectives::language_loss(*lm_.model, output, part(labels_), {.chunk = config_.objective.chunk}, tokens_);
  add_metric(metrics, "loss", loss.loss);
  add_metric(metrics, "cross_entropy", loss.cross_entropy);
  add_metric(metrics, "tokens", loss.labelled);
  return loss.loss;
}

PolychromicTask::AnswerRows PolychromicTask::answer_rows(int64_t micro_batch) const {
  const bool rewards = kind_ == PolychromicKind::rewards;
  const int64_t each =
      rewards ? plan_.micro_rows * plan_.reward_samples : plan_.diverse_prompts * plan_.diverse_samples;
  AnswerRows rows{.ids = {}, .labels = {}, .weights = {}, .first = micro_batch * each, .count = each};
  const auto part = [&](const at::Tensor& t) {
    return t.narrow(0, rows.first, each).narrow(1, 0, answer_width_).contiguous();
  };
  rows.ids = part(answer_ids_);
  rows.labels = part(answer_labels_);
  rows.weights = part(answer_weights_);
  return rows;
}

// The policy that sampled had no dropout, and its temperature.
at::Tensor PolychromicTask::diversity_loss(int64_t micro_batch, at::Tensor& metrics) {
  (void)metrics;
  const AnswerRows rows = answer_rows(micro_batch);
  if (lm_.lora) lm_.lora->set_dropout(false);
  const at::Tensor hidden = lm_.model->forward({.ids = rows.ids}).hidden;
  if (lm_.lora) lm_.lora->set_dropout(true);
  return objectives::score_loss(hidden, lm_.model->head(), rows.labels, rows.weights,
                                config_.polychromic.diversity_temperature, config_.objective.chunk)
      .loss;
}

at::Tensor PolychromicTask::reward_loss(int64_t micro_batch, at::Tensor& metrics) {
  const config::GrpoConfig& g = config_.grpo;
  const AnswerRows rows = answer_rows(micro_batch);
  const auto log_probs = [&] {
    return objectives::token_log_probs(lm_.model->forward({.ids = rows.ids}).hidden, lm_.model->head(), rows.labels,
                                       g.temperature, config_.objective.chunk)
        .log_p;
  };
  at::Tensor reference;
  if (g.beta > 0) {
    const at::NoGradGuard no_grad;
    const nn::WithLoraMode off(*lm_.lora, nn::LoraMode::off);
    reference = log_probs();
  }
  if (lm_.lora) lm_.lora->set_dropout(false);
  const at::Tensor logp = log_probs();
  if (lm_.lora) lm_.lora->set_dropout(true);
  const at::Tensor mask = rows.labels.ne(data::kIgnoreLabel);
  const objectives::PolicyOptions options{.aggregation = objectives::policy_aggregation_from_name(g.loss_type),
                                          .ratio = objectives::ratio_level_from_name(g.importance_sampling_level),
                                          .epsilon_low = g.epsilon,
                                          .epsilon_high = g.epsilon_high > 0 ? g.epsilon_high : g.epsilon,
                                          .delta = g.delta > 0 ? std::optional(g.delta) : std::nullopt,
                                          .beta = g.beta,
                                          .max_tokens = g.max_completion_length};
  const at::Tensor answers =
      at::full_like(answer_tokens_, static_cast<double>(config_.train.global_batch_size * plan_.reward_samples));
  const objectives::PolicyLoss loss = objectives::policy_loss(logp, sampled_log_p(rows, logp), reference, mask,
                                                              advantages_.narrow(0, rows.first, rows.count), options,
                                                              {.tokens = answer_tokens_, .rows = answers});
  add_metric(metrics, "loss", loss.loss);
  add_metric(metrics, "kl", loss.kl);
  add_metric(metrics, "clip_low", loss.clip_low);
  add_metric(metrics, "clip_high", loss.clip_high);
  add_metric(metrics, "ratio", loss.ratio_mean);
  return loss.loss;
}

// Of the policy that sampled: kept by the first step that learns from the answers, read by those that follow.
at::Tensor PolychromicTask::sampled_log_p(const AnswerRows& rows, const at::Tensor& logp) const {
  if (!answer_log_p_.defined()) return {};
  const at::Tensor kept = answer_log_p_.narrow(0, rows.first, rows.count).narrow(1, 0, answer_width_);
  if (updates_ > 1) return kept;
  kept.copy_(logp.detach());
  return {};
}

void PolychromicTask::forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) {
  if (micro_batch == 0) {
    count_tokens();
    metric_sums.add_(facts_);
    phases_.begin();
  }
  const auto backward = [&](const at::Tensor& loss) {
    const ProfilerRange range(RangeKind::step, "backward");
    loss.backward(loss_scale.defined() ? loss_scale.to(loss.scalar_type()) : at::Tensor());
    phases_.end(kBackward);
  };
  const bool estimates = kind_ == PolychromicKind::diversity && config_.polychromic.objective != "compat";
  const auto forward = [&](auto&& pass) {
    const ProfilerRange range(RangeKind::step, "forward");
    const at::Tensor loss = pass();
    phases_.end(kForward);
    return loss;
  };
  if (kind_ == PolychromicKind::rewards) {
    backward(forward([&] { return reward_loss(micro_batch, metric_sums); }));
  } else {
    const at::Tensor loss = forward([&] { return response_loss(micro_batch, metric_sums); });
    if (!estimates) {
      backward(loss);
    } else if (comm_->alone()) {
      // One after the other, so that only one pass is kept at a time.
      backward(loss);
      backward(forward([&] { return diversity_loss(micro_batch, metric_sums); }));
    } else {
      // Gradients are complete, and travel, when one backward pass is through both.
      backward(loss + forward([&] { return diversity_loss(micro_batch, metric_sums); }));
    }
  }
  // Masks of the next micro-batch are others.
  if (lm_.lora) lm_.lora->step().add_(1);
}

// The end of the captured part: since the last backward pass gradients of other ranks, their norm and the update.
void PolychromicTask::update_extra(const at::Tensor& skip) {
  (void)skip;
  phases_.end(kOptimizer);
}

}  // namespace hrm::tasks

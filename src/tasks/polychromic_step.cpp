// The captured part of a step: losses of responses and of sampled answers, forward and backward.
#include <ATen/ATen.h>

#include "hrm/data/batch.h"
#include "hrm/objectives/language.h"
#include "hrm/objectives/token_log_probs.h"
#include "hrm/ops/sum_rows.h"
#include "hrm/runtime/nvtx.h"
#include "hrm/tasks/polychromic.h"

namespace hrm::tasks {
namespace {

// As take_performance() names them.
enum Phase { kForward, kBackward, kOptimizer };

// The hidden states that give labels, (1, C, D).
at::Tensor labelled_hidden(models::LanguageModel& model, const SharedAnswerTokens& answers) {
  const at::Tensor hidden = model.forward({.ids = answers.ids, .shared = answers.tokens}).hidden;
  return ops::sum_rows(hidden.flatten(0, 1), answers.labelled).unsqueeze(0);
}

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

// A micro-batch's rows of responses.
at::Tensor PolychromicTask::response_rows(const at::Tensor& all, int64_t micro_batch) const {
  return all.narrow(0, micro_batch * plan_.micro_rows, plan_.micro_rows).narrow(1, 0, width_).contiguous();
}

at::Tensor PolychromicTask::response_loss(int64_t micro_batch, at::Tensor& metrics) {
  const at::Tensor documents = documents_.defined() ? response_rows(documents_, micro_batch) : at::Tensor();
  return loss_of_responses(lm_.model->forward({.ids = response_rows(ids_, micro_batch), .documents = documents}),
                           micro_batch, metrics);
}

at::Tensor PolychromicTask::loss_of_responses(const models::LanguageOutput& output, int64_t micro_batch,
                                              at::Tensor& metrics) {
  const objectives::LanguageLoss loss = objectives::language_loss(
      *lm_.model, output, response_rows(labels_, micro_batch), {.chunk = config_.objective.chunk}, tokens_);
  add_metric(metrics, "loss", loss.loss);
  add_metric(metrics, "cross_entropy", loss.cross_entropy);
  add_metric(metrics, "tokens", loss.labelled);
  return loss.loss;
}

PolychromicTask::AnswerRows PolychromicTask::answer_rows(int64_t micro_batch) const {
  const int64_t each = answers_of_micro_batch();
  AnswerRows rows{.ids = {}, .labels = {}, .weights = {}, .first = micro_batch * each, .count = each};
  const auto part = [&](const at::Tensor& t) {
    return t.narrow(0, rows.first, each).narrow(1, 0, answer_width_).contiguous();
  };
  rows.ids = part(answer_ids_);
  rows.labels = part(answer_labels_);
  rows.weights = part(answer_weights_);
  if (answer_tokens_kept_ > 0) rows.shared = shared_answers_->part(micro_batch);
  return rows;
}

// (answers, width) float32, 0 where there is no label.
at::Tensor PolychromicTask::answer_log_probs(const AnswerRows& rows, double temperature) {
  const auto of = [&](const at::Tensor& hidden, const at::Tensor& labels) {
    return objectives::token_log_probs(hidden, lm_.model->head(), labels, temperature, config_.objective.chunk).log_p;
  };
  if (!rows.shared) return of(lm_.model->forward({.ids = rows.ids}).hidden, rows.labels);
  const at::Tensor log_p = of(labelled_hidden(*lm_.model, *rows.shared), rows.shared->labels);
  return ops::sum_rows(log_p.view({-1, 1}), rows.shared->to_rows).view(rows.labels.sizes());
}

// hidden: of the rows, or what gives labels of answers that are shared. With the temperature that they were sampled at.
at::Tensor PolychromicTask::loss_of_answers(const at::Tensor& hidden, const AnswerRows& rows) {
  const double temperature = config_.polychromic.diversity_temperature;
  const auto loss = [&](const at::Tensor& labels, const at::Tensor& weights) {
    return objectives::score_loss(hidden, lm_.model->head(), labels, weights, temperature, config_.objective.chunk)
        .loss;
  };
  if (!rows.shared) return loss(rows.labels, rows.weights);
  const at::Tensor weights = ops::sum_rows(rows.weights.view({-1, 1}), rows.shared->to_rows.reversed());
  return loss(rows.shared->labels, weights.view(rows.shared->labels.sizes()));
}

// The policy that sampled had no dropout.
at::Tensor PolychromicTask::diversity_loss(int64_t micro_batch) {
  const AnswerRows rows = answer_rows(micro_batch);
  if (lm_.lora) lm_.lora->set_dropout(false);
  const at::Tensor hidden =
      rows.shared ? labelled_hidden(*lm_.model, *rows.shared) : lm_.model->forward({.ids = rows.ids}).hidden;
  if (lm_.lora) lm_.lora->set_dropout(true);
  return loss_of_answers(hidden, rows);
}

// Both in one pass, in which the answers' prompts are those of the responses.
at::Tensor PolychromicTask::joint_loss(int64_t micro_batch, at::Tensor& metrics) {
  const AnswerRows rows = answer_rows(micro_batch);
  const at::Tensor responses = response_rows(ids_, micro_batch);
  const at::Tensor ids = at::cat({responses.view({1, -1}).to(at::kInt), rows.shared->ids}, 1);
  models::LanguageOutput output = lm_.model->forward({.ids = ids, .shared = rows.shared->tokens});
  const at::Tensor hidden = output.hidden.flatten(0, 1);
  output.hidden = hidden.narrow(0, 0, responses.numel()).view({responses.size(0), responses.size(1), -1});
  return loss_of_responses(output, micro_batch, metrics) +
         loss_of_answers(ops::sum_rows(hidden, rows.shared->labelled).unsqueeze(0), rows);
}

at::Tensor PolychromicTask::reward_loss(int64_t micro_batch, at::Tensor& metrics) {
  const config::GrpoConfig& g = config_.grpo;
  const AnswerRows rows = answer_rows(micro_batch);
  at::Tensor reference;
  if (g.beta > 0) {
    const at::NoGradGuard no_grad;
    const nn::WithLoraMode off(*lm_.lora, nn::LoraMode::off);
    reference = answer_log_probs(rows, g.temperature);
  }
  if (lm_.lora) lm_.lora->set_dropout(false);
  const at::Tensor logp = answer_log_probs(rows, g.temperature);
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
  const auto forward = [&](auto&& pass) {
    const ProfilerRange range(RangeKind::step, "forward");
    const at::Tensor loss = pass();
    phases_.end(kForward);
    return loss;
  };
  if (kind_ == PolychromicKind::rewards) {
    backward(forward([&] { return reward_loss(micro_batch, metric_sums); }));
  } else if (answer_tokens_kept_ > 0 && joins_responses()) {
    backward(forward([&] { return joint_loss(micro_batch, metric_sums); }));
  } else {
    const at::Tensor loss = forward([&] { return response_loss(micro_batch, metric_sums); });
    if (!learns_from_answers()) {
      backward(loss);
    } else if (comm_->alone()) {
      // One after the other, so that only one pass is kept at a time.
      backward(loss);
      backward(forward([&] { return diversity_loss(micro_batch); }));
    } else {
      // Gradients are complete, and travel, when one backward pass is through both.
      backward(loss + forward([&] { return diversity_loss(micro_batch); }));
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

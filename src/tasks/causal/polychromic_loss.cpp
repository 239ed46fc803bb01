#include "hrm/tasks/polychromic_loss.h"

#include <ATen/ATen.h>

#include "hrm/data/batch.h"
#include "hrm/objectives/diversity.h"
#include "hrm/objectives/language.h"
#include "hrm/objectives/policy_gradient.h"
#include "hrm/objectives/token_log_probs.h"
#include "hrm/ops/sum_rows.h"

namespace hrm::tasks {
namespace {

// The hidden states that give labels, (1, C, D).
at::Tensor labelled_hidden(models::LanguageModel& model, const PrefixSharedTokens& answers) {
  const at::Tensor hidden = model.forward({.ids = answers.ids, .shared = answers.tokens}).hidden;
  return ops::sum_rows(hidden.flatten(0, 1), answers.labelled).unsqueeze(0);
}

objectives::PolicyOptions policy_options(const config::GrpoConfig& g) {
  return {.aggregation = g.loss_type,
          .ratio = g.importance_sampling_level,
          .epsilon_low = g.epsilon,
          .epsilon_high = g.epsilon_high > 0 ? g.epsilon_high : g.epsilon,
          .delta = g.delta > 0 ? std::optional(g.delta) : std::nullopt,
          .beta = g.beta,
          .max_tokens = g.max_completion_length};
}

}  // namespace

PolychromicLoss::PolychromicLoss(const config::Config& config, const PolychromicPlan& plan, CausalLm& lm,
                                 const PolychromicMetrics& metrics, const ResponseBatch& responses,
                                 const AnswerBatch& answers, at::Device device)
    : config_(config), plan_(plan), lm_(lm), metrics_(metrics), responses_(responses), answers_(answers) {
  const auto floats = at::device(device).dtype(at::kFloat);
  tokens_ = at::ones({}, floats);
  answer_tokens_ = at::ones({}, floats);
}

// Every rank divides by the tokens of all.
void PolychromicLoss::count_tokens(parallel::Comm& comm) {
  const at::NoGradGuard no_grad;
  const auto labelled = [&](const at::Tensor& labels) { return labels.ne(data::kIgnoreLabel).sum(); };
  at::Tensor counts = at::stack({labelled(responses_.step_labels()), labelled(answers_.step_labels())}).to(at::kFloat);
  comm.all_reduce_in_step(counts);
  counts = counts.clamp_min(1);
  tokens_.copy_(counts[0]);
  answer_tokens_.copy_(counts[1]);
}

at::Tensor PolychromicLoss::responses(int64_t micro_batch, at::Tensor& sums) {
  const int64_t rows = plan_.micro_rows, first = micro_batch * rows;
  const models::LanguageInputs inputs{.ids = responses_.ids(first, rows),
                                      .documents = responses_.documents(first, rows),
                                      .most_documents = responses_.most_documents()};
  return cross_entropy(lm_.model->forward(inputs), micro_batch, sums);
}

at::Tensor PolychromicLoss::cross_entropy(const models::LanguageOutput& output, int64_t micro_batch, at::Tensor& sums) {
  const at::Tensor labels = responses_.labels(micro_batch * plan_.micro_rows, plan_.micro_rows);
  const objectives::LanguageLoss loss =
      objectives::language_loss(*lm_.model, output, labels, {.chunk = config_.objective.chunk}, tokens_);
  metrics_.add(sums, "loss", loss.loss);
  metrics_.add(sums, "cross_entropy", loss.cross_entropy);
  metrics_.add(sums, "tokens", loss.labelled);
  return loss.loss;
}

at::Tensor PolychromicLoss::without_dropout(const std::function<at::Tensor()>& pass) {
  if (lm_.lora) lm_.lora->set_dropout(false);
  at::Tensor out = pass();
  if (lm_.lora) lm_.lora->set_dropout(true);
  return out;
}

at::Tensor PolychromicLoss::diversity(int64_t micro_batch) {
  const AnswerRows rows = answers_.rows(micro_batch);
  const at::Tensor hidden = without_dropout([&] {
    return rows.shared ? labelled_hidden(*lm_.model, *rows.shared) : lm_.model->forward({.ids = rows.ids}).hidden;
  });
  return diversity_term(hidden, rows);
}

// hidden: of the rows, or what gives labels of answers that are shared. With the temperature that they were sampled at.
at::Tensor PolychromicLoss::diversity_term(const at::Tensor& hidden, const AnswerRows& rows) {
  const double temperature = config_.polychromic.diversity_temperature;
  const auto loss = [&](const at::Tensor& labels, const at::Tensor& weights) {
    return objectives::score_loss(hidden, lm_.model->head(), labels, weights, temperature, config_.objective.chunk)
        .loss;
  };
  if (!rows.shared) return loss(rows.labels, rows.weights);
  const at::Tensor weights = ops::sum_rows(rows.weights.view({-1, 1}), rows.shared->to_rows.reversed());
  return loss(rows.shared->labels, weights.view(rows.shared->labels.sizes()));
}

at::Tensor PolychromicLoss::joint(int64_t micro_batch, at::Tensor& sums) {
  const AnswerRows rows = answers_.rows(micro_batch);
  const at::Tensor responses = responses_.ids(micro_batch * plan_.micro_rows, plan_.micro_rows);
  const at::Tensor ids = at::cat({responses.view({1, -1}).to(at::kInt), rows.shared->ids}, 1);
  models::LanguageOutput output = lm_.model->forward({.ids = ids, .shared = rows.shared->tokens});
  const at::Tensor hidden = output.hidden.flatten(0, 1);
  output.hidden = hidden.narrow(0, 0, responses.numel()).view({responses.size(0), responses.size(1), -1});
  return cross_entropy(output, micro_batch, sums) +
         diversity_term(ops::sum_rows(hidden, rows.shared->labelled).unsqueeze(0), rows);
}

// (answers, width) float32, 0 where there is no label.
at::Tensor PolychromicLoss::answer_log_probs(const AnswerRows& rows, double temperature) {
  const auto of = [&](const at::Tensor& hidden, const at::Tensor& labels) {
    return objectives::token_log_probs(hidden, lm_.model->head(), labels, temperature, config_.objective.chunk).log_p;
  };
  if (!rows.shared) return of(lm_.model->forward({.ids = rows.ids}).hidden, rows.labels);
  const at::Tensor log_p = of(labelled_hidden(*lm_.model, *rows.shared), rows.shared->labels);
  return ops::sum_rows(log_p.view({-1, 1}), rows.shared->to_rows).view(rows.labels.sizes());
}

at::Tensor PolychromicLoss::rewards(int64_t micro_batch, at::Tensor& sums) {
  const config::GrpoConfig& g = config_.grpo;
  const AnswerRows rows = answers_.rows(micro_batch);
  at::Tensor reference;
  if (g.beta > 0) {
    const at::NoGradGuard no_grad;
    const nn::WithLoraMode off(*lm_.lora, nn::LoraMode::off);
    reference = answer_log_probs(rows, g.temperature);
  }
  const at::Tensor log_p = without_dropout([&] { return answer_log_probs(rows, g.temperature); });
  const at::Tensor mask = rows.labels.ne(data::kIgnoreLabel);
  const at::Tensor answers =
      at::full_like(answer_tokens_, static_cast<double>(config_.train.global_batch_size * plan_.reward_samples));
  const objectives::PolicyLoss loss =
      objectives::policy_loss(log_p, answers_.sampled_log_p(rows, log_p), reference, mask, answers_.advantages(rows),
                              policy_options(g), {.tokens = answer_tokens_, .rows = answers});
  metrics_.add(sums, "loss", loss.loss);
  metrics_.add(sums, "kl", loss.kl);
  metrics_.add(sums, "clip_low", loss.clip_low);
  metrics_.add(sums, "clip_high", loss.clip_high);
  metrics_.add(sums, "ratio", loss.ratio_mean);
  return loss.loss;
}

}  // namespace hrm::tasks

#include "hrm/objectives/language.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <vector>

#include "hrm/data/batch.h"
#include "hrm/objectives/chunked_cross_entropy.h"
#include "hrm/ops/gates.h"

namespace hrm::objectives {

LanguageLoss language_loss(const models::LanguageModel& model, const models::LanguageOutput& output,
                           const at::Tensor& labels, const LanguageLossOptions& options, const at::Tensor& tokens,
                           double share) {
  const auto scalar = at::device(labels.device()).dtype(at::kFloat);
  const auto earlier = static_cast<int64_t>(output.earlier_hidden.size());
  const at::Tensor flat = labels.reshape({-1});
  const at::Tensor has_label = flat.ne(data::kIgnoreLabel).to(at::kFloat);
  LanguageLoss result;
  result.labelled = has_label.sum();
  const at::Tensor one = has_label / (tokens.defined() ? tokens : result.labelled.clamp_min(1));

  // Outputs of all cycles, last cycle first, as one batch: one pass computes the head's weight gradient.
  std::vector<at::Tensor> hidden{output.hidden}, weights{one};
  for (const at::Tensor& h : output.earlier_hidden) {
    hidden.push_back(h);
    weights.push_back(one * (options.deep_supervision / static_cast<double>(earlier)));
  }
  const at::Tensor rows = (earlier > 0 ? at::cat(hidden) : hidden[0]).reshape({-1, output.hidden.size(-1)});
  const ChunkedCrossEntropy ce = chunked_cross_entropy(rows, model.head(), flat.repeat({earlier + 1}),
                                                       earlier > 0 ? at::cat(weights) : one, options.chunk);
  const at::Tensor means = (ce.per_token.view({earlier + 1, -1}) * one).sum(1);
  result.cross_entropy = means[0];
  result.deep_supervision = earlier > 0 ? means.narrow(0, 1, earlier).mean() : at::zeros({}, scalar);
  at::Tensor loss = ce.loss;

  result.halting = at::zeros({}, scalar);
  if (output.halt.defined()) {
    const at::Tensor term = ops::halting_loss(output.halt, output.gate.detach(), options.halting_target);
    loss = loss + term * (options.halting * share);
    result.halting = term.detach();
  }
  result.auxiliary = at::zeros({}, scalar);
  std::map<double, std::vector<at::Tensor>> terms;  // grouped by weight, over all layers
  for (const nn::AuxiliaryLoss& term : output.auxiliary) terms[term.weight].push_back(term.value);
  for (const auto& [weight, values] : terms) {
    const at::Tensor sum = at::stack(values).sum();
    loss = loss + sum * (weight * share);
    result.auxiliary = result.auxiliary + sum.detach() * weight;
  }
  result.loss = loss;
  return result;
}

TokenScores token_scores(const models::LanguageModel& model, const at::Tensor& hidden, const at::Tensor& labels,
                         int64_t chunk) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = hidden.reshape({-1, hidden.size(-1)}), flat = labels.reshape({-1}).to(at::kLong);
  const at::Tensor ignored = flat.eq(data::kIgnoreLabel), index = flat.masked_fill(ignored, 0);
  TokenScores scores{at::empty(flat.sizes(), flat.options().dtype(at::kFloat)),
                     at::empty(flat.sizes(), flat.options().dtype(at::kBool))};
  for (int64_t first = 0; first < flat.size(0); first += chunk) {
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, std::min(chunk, flat.size(0) - first)); };
    const at::Tensor log_p = at::log_softmax(model.logits(part(rows)), -1, at::kFloat);
    part(scores.cross_entropy).copy_(log_p.gather(-1, part(index).unsqueeze(-1)).squeeze(-1).neg());
    part(scores.right).copy_(log_p.argmax(-1).eq(part(index)));
  }
  scores.cross_entropy = scores.cross_entropy.masked_fill(ignored, 0).view(labels.sizes());
  scores.right = scores.right.logical_or(ignored).view(labels.sizes());
  return scores;
}

}  // namespace hrm::objectives

#include "hrm/objectives/language.h"

#include <ATen/ATen.h>

#include "hrm/data/batch.h"
#include "hrm/objectives/chunked_cross_entropy.h"

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

  // Answers of all cycles, the last first, as one long batch: one pass over the head's weight gradient.
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
    const at::Tensor excess = output.halt.sum(0) - options.halting_target;
    const at::Tensor term = output.gate.detach().mean() * excess.square().mean();
    loss = loss + term * (options.halting * share);
    result.halting = term.detach();
  }
  result.auxiliary = at::zeros({}, scalar);
  for (const nn::AuxiliaryLoss& term : output.auxiliary) {
    loss = loss + term.value * (term.weight * share);
    result.auxiliary = result.auxiliary + term.value.detach() * term.weight;
  }
  result.loss = loss;
  return result;
}

}  // namespace hrm::objectives

#pragma once
// A policy over so few answers that expectations over it are sums: one or two tokens, the second's logits a row of a
// table that the first chooses. It is a head over one-hot hidden states, so that the losses of real models take it.

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "hrm/nn/lm_head.h"
#include "hrm/objectives/diversity.h"

namespace hrm::test {

struct TinyPolicy {
  std::shared_ptr<nn::LmHead> head;  // weight (V, 1) or (V, 1 + V), float64: column 0 the first token's logits

  explicit TinyPolicy(const at::Tensor& first, const at::Tensor& second = {}) {
    const at::Tensor column = first.to(at::kDouble).unsqueeze(1);
    const at::Tensor weight = second.defined() ? at::cat({column, second.to(at::kDouble).t()}, 1) : column;
    head = std::make_shared<nn::LmHead>(weight.clone().requires_grad_());
  }

  int64_t vocabulary() const { return head->weight().size(0); }
  bool two_steps() const { return head->weight().size(1) > 1; }
  int64_t answers() const { return two_steps() ? vocabulary() * vocabulary() : vocabulary(); }

  // Of answers y (B), first token * V + second: (B, T) ids and (B, T, D) hidden states.
  at::Tensor ids(const at::Tensor& y) const {
    const at::Tensor flat = y.to(at::kLong);
    if (!two_steps()) return flat.unsqueeze(1);
    return at::stack({flat.div(vocabulary(), "floor"), flat.remainder(vocabulary())}, 1);
  }
  at::Tensor hidden(const at::Tensor& y) const {
    const int64_t D = head->weight().size(1);
    at::Tensor state = at::zeros({y.size(0), 1}, at::kLong);
    if (two_steps()) state = at::cat({state, ids(y).narrow(1, 0, 1) + 1}, 1);
    return at::one_hot(state, D).to(at::kDouble);
  }

  // Probabilities of all answers, differentiable in `weight`.
  at::Tensor probabilities(const at::Tensor& weight) const {
    const at::Tensor first = at::softmax(weight.select(1, 0), 0);
    if (!two_steps()) return first;
    const at::Tensor second = at::softmax(weight.narrow(1, 1, vocabulary()).t(), 1);
    return (first.unsqueeze(1) * second).flatten();
  }

  // All groups of N answers, (answers^N, N).
  at::Tensor groups(int64_t N) const {
    const std::vector<at::Tensor> axes(static_cast<size_t>(N), at::arange(answers()));
    return at::cartesian_prod(axes).reshape({-1, N});
  }
  // Their probabilities, differentiable in `weight`.
  at::Tensor group_probabilities(const at::Tensor& weight, const at::Tensor& y) const {
    return probabilities(weight).index({y}).prod(1);
  }
  // The gradient of the sum over groups y of probability * value, by plain differentiation.
  at::Tensor exact_gradient(const at::Tensor& y, const at::Tensor& values) const {
    const at::Tensor weight = head->weight().detach().clone().requires_grad_();
    (group_probabilities(weight, y) * values).sum().backward();
    return weight.grad();
  }

  // The gradient of the head that score_loss leaves for these weights of -log pi, (B, T).
  at::Tensor score_gradient(const at::Tensor& y, const at::Tensor& weights) const {
    head->weight().mutable_grad() = at::Tensor();
    const at::Tensor flat = y.reshape({-1});
    objectives::score_loss(hidden(flat), *head, ids(flat), weights, /*temperature=*/1, /*chunk=*/7).loss.backward();
    return head->weight().grad().clone();
  }
  at::Tensor mask(const at::Tensor& y) const { return at::ones({y.numel(), two_steps() ? 2 : 1}, at::kDouble); }
};

// 1 - cosine of the embeddings (answers, d) of the answers of groups y (G, N): (G, N, N).
inline at::Tensor distances(const at::Tensor& embeddings, const at::Tensor& y) {
  const at::Tensor unit = embeddings / embeddings.norm(2, -1, true);
  const at::Tensor e = unit.index({y.to(at::kLong)});
  return 1 - at::matmul(e, e.transpose(1, 2));
}

// The mean over pairs of a distance, with its rows and leave-one-out values.
inline objectives::GroupDiversity pair_diversity(const at::Tensor& distances) {
  const int64_t N = distances.size(1);
  const at::Tensor d = distances - at::diag_embed(distances.diagonal(0, 1, 2));
  const at::Tensor rows = d.sum(2), total = rows.sum(1);
  const at::Tensor rest = total.unsqueeze(1) - 2 * rows;
  return {.totals = total / static_cast<double>(N * (N - 1)),
          .rows = rows / static_cast<double>(N - 1),
          .loo = N > 2 ? rest / static_cast<double>((N - 1) * (N - 2)) : at::zeros_like(rest)};
}

}  // namespace hrm::test

// Softmax cross-entropy over a vocabulary that is cut into parts.
#include <ATen/ATen.h>

#include "hrm/ops/softmax_loss.h"
#include "hrm/ops/token_loss.h"
#include "ops/common/accumulate_type.h"

namespace hrm::ops {
namespace {

// What all parts' facts say of each row, (N) each.
struct WholeRow {
  at::Tensor largest, sum, label;
};

WholeRow whole_row(const at::Tensor& facts) {
  WholeRow row{.largest = facts.select(-1, 0).amax(0), .sum = {}, .label = facts[0].select(-1, 2).clone()};
  const auto sum_of = [&](int64_t part) {
    return facts[part].select(-1, 1) * (facts[part].select(-1, 0) - row.largest).exp();
  };
  row.sum = sum_of(0);
  for (int64_t part = 1; part < facts.size(0); ++part) {
    row.sum.add_(sum_of(part));
    row.label.add_(facts[part].select(-1, 2));
  }
  return row;
}

// Labels in this part's numbers, and which of them are another part's or ignored.
struct OwnLabels {
  at::Tensor index, others;
};

OwnLabels own_labels(const at::Tensor& labels, int64_t first, int64_t count) {
  const at::Tensor own = labels.to(at::kLong) - first;
  const at::Tensor others = own.lt(0).logical_or_(own.ge(count)).logical_or_(labels.eq(kIgnoredToken));
  return {own.masked_fill(others, 0).unsqueeze(-1), others};
}

}  // namespace

at::Tensor softmax_loss_facts(const at::Tensor& logits, const at::Tensor& labels, int64_t first, bool with_mean) {
  TORCH_CHECK(logits.dim() == 2 && labels.dim() == 1 && labels.size(0) == logits.size(0),
              "softmax_loss_facts: logits (N, V) and labels (N) do not fit, got ", logits.sizes(), " and ",
              labels.sizes());
  const at::NoGradGuard no_grad;
  const at::Tensor wide = logits.to(accumulate_type(logits)), largest = wide.amax(-1, /*keepdim=*/true);
  const at::Tensor below = wide - largest, exp = below.exp();
  const auto [index, others] = own_labels(labels, first, logits.size(1));
  std::vector<at::Tensor> facts{largest.squeeze(-1), exp.sum(-1),
                                wide.gather(-1, index).squeeze(-1).masked_fill(others, 0)};
  if (with_mean) facts.push_back(exp.mul(below).sum(-1));
  return at::stack(facts, -1);
}

at::Tensor softmax_loss_part_(const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                              const at::Tensor& facts, const std::optional<at::Tensor>& weights) {
  TORCH_CHECK(facts.dim() == 3 && facts.size(1) == logits.size(0) && facts.size(2) >= 3 && facts.size(0) > 0,
              "softmax_loss_part_: facts must be (parts, N, 3) for logits (N, V), got ", facts.sizes(), " and ",
              logits.sizes());
  const at::NoGradGuard no_grad;
  const WholeRow row = whole_row(facts);
  const at::Tensor ignored = labels.eq(kIgnoredToken);
  at::Tensor loss = (row.sum.log() + row.largest - row.label).masked_fill(ignored, 0);
  if (weights) {
    at::Tensor grad = (logits.to(facts.scalar_type()) - row.largest.unsqueeze(-1)).exp_().div_(row.sum.unsqueeze(-1));
    const auto [index, others] = own_labels(labels, first, logits.size(1));
    grad.scatter_add_(-1, index, others.logical_not().to(grad.scalar_type()).neg().unsqueeze(-1));
    logits.copy_(grad.mul_(weights->masked_fill(ignored, 0).unsqueeze(-1)));
  }
  return loss;
}

at::Tensor softmax_entropy(const at::Tensor& facts) {
  TORCH_CHECK(facts.dim() == 3 && facts.size(2) == 4, "softmax_entropy: facts must be (parts, N, 4), got ",
              facts.sizes());
  const at::NoGradGuard no_grad;
  const WholeRow row = whole_row(facts);
  at::Tensor mean = at::zeros_like(row.sum);  // of logit - largest, times the sum
  for (int64_t part = 0; part < facts.size(0); ++part) {
    const at::Tensor shift = facts[part].select(-1, 0) - row.largest;
    mean.add_((facts[part].select(-1, 3) + facts[part].select(-1, 1) * shift) * shift.exp());
  }
  return row.sum.log() - mean / row.sum;
}

}  // namespace hrm::ops

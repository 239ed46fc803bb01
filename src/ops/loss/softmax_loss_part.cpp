// Softmax cross-entropy over a vocabulary that is cut into parts.
#include "ops/loss/softmax_loss_part_impl.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "hrm/ops/token_loss.h"
#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"
#include "ops/loss/softmax_loss_impl.h"

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

void check_softmax_loss_facts(const at::Tensor& logits, const at::Tensor& labels, int64_t first) {
  check_softmax_loss(logits, labels, {});
  TORCH_CHECK(first >= 0, "hrm::softmax_loss_facts: first must not be negative, got ", first);
}

void check_softmax_loss_part(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& facts,
                             const std::optional<at::Tensor>& weights) {
  check_softmax_loss(logits, labels, weights);
  TORCH_CHECK(facts.dim() == 3 && facts.size(1) == logits.size(0) && (facts.size(2) == 3 || facts.size(2) == 4) &&
                  facts.size(0) > 0 && facts.scalar_type() == accumulate_type(logits) &&
                  facts.device() == logits.device(),
              "hrm::softmax_loss_part_: facts must be (parts, N, 3 or 4) ", accumulate_type(logits),
              " for logits (N, V), got ", facts.sizes(), " ", facts.scalar_type(), " and ", logits.sizes());
}

namespace reference {

at::Tensor softmax_loss_facts(const at::Tensor& logits, const at::Tensor& labels, int64_t first, bool with_mean) {
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

}  // namespace reference

namespace {

at::Tensor softmax_loss_facts_cpu(const at::Tensor& logits, const at::Tensor& labels, int64_t first, bool with_mean) {
  check_softmax_loss_facts(logits, labels, first);
  return reference::softmax_loss_facts(logits, labels, first, with_mean);
}

at::Tensor softmax_loss_part_cpu(const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                                 const at::Tensor& facts, const std::optional<at::Tensor>& weights) {
  check_softmax_loss_part(logits, labels, facts, weights);
  return reference::softmax_loss_part_(logits, labels, first, facts, weights);
}

}  // namespace

at::Tensor softmax_loss_facts(const at::Tensor& logits, const at::Tensor& labels, int64_t first, bool with_mean) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, bool)> op("hrm::softmax_loss_facts");
  return op(logits, labels, first, with_mean);
}

at::Tensor softmax_loss_part_(const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                              const at::Tensor& facts, const std::optional<at::Tensor>& weights) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, const at::Tensor&,
                             const std::optional<at::Tensor>&)>
      op("hrm::softmax_loss_part_");
  return op(logits, labels, first, facts, weights);
}

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("softmax_loss_facts(Tensor logits, Tensor labels, int first, bool with_mean) -> Tensor");
  m.def("softmax_loss_part_(Tensor(a!) logits, Tensor labels, int first, Tensor facts, Tensor? weights) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("softmax_loss_facts", &softmax_loss_facts_cpu);
  m.impl("softmax_loss_part_", &softmax_loss_part_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("softmax_loss_facts", torch::autograd::autogradNotImplementedFallback());
  m.impl("softmax_loss_part_", torch::autograd::autogradNotImplementedFallback());
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

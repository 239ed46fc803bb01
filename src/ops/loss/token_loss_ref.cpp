// The readable version, the CPU implementation, and the oracle of the CUDA kernel.
#include <ATen/ATen.h>

#include "ops/loss/token_loss_impl.h"

namespace hrm::ops {
namespace {

at::Tensor stable(const at::Tensor& x) {
  return at::where(x.ge(0), x + 1, at::reciprocal(1 - x + 1e-30));
}

// Labels as gather indices: ignored ones point at token 0 and are masked by the caller.
at::Tensor label_index(const at::Tensor& labels) {
  return labels.masked_fill(labels.eq(kIgnoredToken), 0).to(at::kLong).unsqueeze(-1);
}

}  // namespace

at::Tensor token_cross_entropy(const at::Tensor& logits, const at::Tensor& labels, LossKind kind,
                               LossPrecision precision) {
  const at::Tensor x = logits.to(loss_type(kind, precision)), index = label_index(labels);
  at::Tensor loss;
  if (kind == LossKind::stablemax) {
    const at::Tensor s = stable(x);
    loss = at::log(s.gather(-1, index) / s.sum(-1, /*keepdim=*/true)).neg_();
  } else {
    loss = at::log_softmax(x, -1).gather(-1, index).neg_();
  }
  return loss.squeeze(-1).masked_fill_(labels.eq(kIgnoredToken), 0);
}

// stablemax: d(-log(s_y / sum s)) / dx_j = s'_j / sum s - [j = y] s'_y / s_y, with s' = 1 for x >= 0, otherwise s^2.
// softmax: d(-log p_y) / dx_j = p_j - [j = y].
at::Tensor token_cross_entropy_backward(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& labels,
                                        LossKind kind, LossPrecision precision) {
  const at::Tensor x = logits.to(loss_type(kind, precision)), index = label_index(labels);
  const at::Tensor weight = grad.masked_fill(labels.eq(kIgnoredToken), 0).unsqueeze(-1);
  at::Tensor out;
  if (kind == LossKind::stablemax) {
    const at::Tensor s = stable(x);
    const at::Tensor slope = at::where(x.ge(0), at::ones({}, x.options()), s * s);
    out = slope / s.sum(-1, /*keepdim=*/true);
    out.scatter_(-1, index, out.gather(-1, index) - slope.gather(-1, index) / s.gather(-1, index));
  } else {
    out = at::softmax(x, -1);
    out.scatter_(-1, index, out.gather(-1, index) - 1);
  }
  return out.mul_(weight).to(logits.scalar_type());
}

namespace reference {

TokenLoss token_loss(const at::Tensor& logits, const at::Tensor& labels, int64_t first, LossKind kind,
                     LossPrecision precision) {
  const at::Tensor x = logits.narrow(1, first, labels.size(1));
  const at::Tensor has_label = labels.ne(kIgnoredToken);
  const at::Tensor labelled = has_label.sum(1);
  const at::Tensor right = x.argmax(-1).eq(labels).logical_and_(has_label).sum(1);
  const at::Tensor loss =
      token_cross_entropy(x, labels, kind, precision).div_(labelled.clamp_min(1).unsqueeze(1)).sum(1);
  return {loss, labelled.to(at::kInt), right.to(at::kInt)};
}

at::Tensor token_loss_backward(const at::Tensor& grad_loss, const at::Tensor& logits, const at::Tensor& labels,
                               int64_t first, LossKind kind, LossPrecision precision) {
  const int64_t count = labels.size(1);
  const at::Tensor divisor = labels.ne(kIgnoredToken).sum(1).clamp_min_(1);
  const at::Tensor grad = (grad_loss / divisor).unsqueeze(1).expand_as(labels);
  at::Tensor out = at::zeros(logits.sizes(), logits.options());
  out.narrow(1, first, count)
      .copy_(token_cross_entropy_backward(grad, logits.narrow(1, first, count), labels, kind, precision));
  return out;
}

}  // namespace reference
}  // namespace hrm::ops

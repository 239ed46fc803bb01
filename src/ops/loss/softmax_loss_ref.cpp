// The readable version, the CPU implementation, and the oracle of the CUDA kernel.
#include <ATen/ATen.h>

#include "hrm/ops/token_loss.h"
#include "ops/common/accumulate_type.h"
#include "ops/loss/softmax_loss_impl.h"

namespace hrm::ops::reference {

at::Tensor softmax_loss_(const at::Tensor& logits, const at::Tensor& labels, const std::optional<at::Tensor>& weights) {
  const at::NoGradGuard no_grad;
  const at::ScalarType type = accumulate_type(logits);
  const at::Tensor log_p = at::log_softmax(logits, -1, type), ignored = labels.eq(kIgnoredToken);
  const at::Tensor index = labels.to(at::kLong).masked_fill(ignored, 0).unsqueeze(-1);
  at::Tensor loss = log_p.gather(-1, index).squeeze(-1).neg().masked_fill(ignored, 0);
  if (weights) {
    at::Tensor grad = log_p.exp();
    grad.scatter_add_(-1, index, at::full({1, 1}, -1, grad.options()).expand(index.sizes()));
    logits.copy_(grad.mul_(weights->masked_fill(ignored, 0).unsqueeze(-1)));
  }
  return loss;
}

}  // namespace hrm::ops::reference

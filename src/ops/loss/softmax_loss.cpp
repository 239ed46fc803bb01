#include "hrm/ops/softmax_loss.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"
#include "ops/loss/softmax_loss_impl.h"

namespace hrm::ops {

void check_softmax_loss(const at::Tensor& logits, const at::Tensor& labels, const std::optional<at::Tensor>& weights) {
  const at::ScalarType wide = accumulate_type(logits);
  TORCH_CHECK(logits.dim() == 2 && labels.dim() == 1 && labels.size(0) == logits.size(0) && logits.size(1) > 0,
              "hrm::softmax_loss_: logits (N, V) and labels (N) do not fit, got ", logits.sizes(), " and ",
              labels.sizes());
  TORCH_CHECK(at::isFloatingType(logits.scalar_type()) && (logits.size(1) == 1 || logits.stride(1) == 1) &&
                  (logits.size(0) <= 1 || logits.stride(0) >= logits.size(1)),
              "hrm::softmax_loss_: logits must be floating-point numbers with a row's side by side, got ",
              logits.scalar_type(), " ", logits.sizes(), " with strides ", logits.strides());
  TORCH_CHECK(
      (labels.scalar_type() == at::kInt || labels.scalar_type() == at::kLong) && labels.device() == logits.device(),
      "hrm::softmax_loss_: labels must be int32 or int64 on ", logits.device(), ", got ", labels.scalar_type(), " on ",
      labels.device(), " (logits ", logits.sizes(), ")");
  TORCH_CHECK(!weights || (weights->sizes() == labels.sizes() && weights->scalar_type() == wide &&
                           weights->device() == logits.device()),
              "hrm::softmax_loss_: weights must be ", wide, " of labels' shape ", labels.sizes(), ", got ",
              weights->scalar_type(), " ", weights->sizes(), " on ", weights->device());
}

at::Tensor softmax_loss_(const at::Tensor& logits, const at::Tensor& labels, const std::optional<at::Tensor>& weights) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&)> op(
      "hrm::softmax_loss_");
  return op(logits, labels, weights);
}

namespace {

at::Tensor softmax_loss_cpu(const at::Tensor& logits, const at::Tensor& labels,
                            const std::optional<at::Tensor>& weights) {
  check_softmax_loss(logits, labels, weights);
  return reference::softmax_loss_(logits, labels, weights);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("softmax_loss_(Tensor(a!) logits, Tensor labels, Tensor? weights) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("softmax_loss_", &softmax_loss_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("softmax_loss_", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/loss/cuda/token_loss.h"
#include "ops/loss/token_loss_impl.h"

namespace hrm::ops {
namespace {

// The kernel reads rows at any distance, but the logits of a row side by side.
at::Tensor with_rows(const at::Tensor& logits) {
  const bool fits = logits.size(2) == 1 || logits.stride(2) == 1;
  return fits && logits.stride(1) >= logits.size(2) ? logits : logits.contiguous();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> token_loss_cuda(const at::Tensor& logits, const at::Tensor& labels,
                                                               int64_t first, int64_t kind, int64_t precision) {
  check_token_loss(logits, labels, first);
  const c10::cuda::CUDAGuard guard(logits.device());
  const auto k = static_cast<LossKind>(kind);
  const auto p = static_cast<LossPrecision>(precision);
  if (!cuda::use_kernel(logits)) {
    const TokenLoss out = reference::token_loss(logits, labels, first, k, p);
    return {out.loss, out.labelled, out.right};
  }
  const at::Tensor rows = with_rows(logits), label_rows = labels.contiguous();
  const int64_t samples = logits.size(0);
  at::Tensor loss = at::empty({samples}, logits.options().dtype(loss_type(k, p)));
  at::Tensor labelled = at::empty({samples}, labels.options()), right = at::empty({samples}, labels.options());
  if (samples == 0) return {loss, labelled, right};
  cuda::TokenLossForward params{};
  params.logits = rows.const_data_ptr();
  params.labels = label_rows.const_data_ptr<int32_t>();
  params.loss = loss.mutable_data_ptr();
  params.labelled = labelled.mutable_data_ptr<int32_t>();
  params.right = right.mutable_data_ptr<int32_t>();
  params.samples = samples;
  params.logits_sample = rows.stride(0);
  params.logits_row = rows.stride(1);
  params.tokens = static_cast<int>(labels.size(1));
  params.first = static_cast<int>(first);
  params.vocab = static_cast<int>(logits.size(2));
  params.softmax = k == LossKind::softmax;
  params.wide = loss.scalar_type() == at::kDouble;
  params.element = cuda::element_of(logits);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {loss, labelled, right};
}

at::Tensor token_loss_backward_cuda(const at::Tensor& grad_loss, const at::Tensor& logits, const at::Tensor& labels,
                                    int64_t first, int64_t kind, int64_t precision) {
  const auto k = static_cast<LossKind>(kind);
  const auto p = static_cast<LossPrecision>(precision);
  check_token_loss_backward(grad_loss, logits, labels, first, k, p);
  const c10::cuda::CUDAGuard guard(logits.device());
  if (!cuda::use_kernel(logits)) return reference::token_loss_backward(grad_loss, logits, labels, first, k, p);
  const at::Tensor rows = with_rows(logits), label_rows = labels.contiguous();
  const int64_t samples = logits.size(0), positions = logits.size(1), vocab = logits.size(2);
  // Rows as far apart as those of the logits: a distance of 16 bytes, say, that the product behind them reads faster.
  const int64_t pitch = rows.stride(1);
  at::Tensor grad = at::empty_strided({samples, positions, vocab}, {positions * pitch, pitch, 1}, logits.options());
  if (grad.numel() == 0) return grad;
  cuda::TokenLossBackward params{};
  params.grad_loss = grad_loss.const_data_ptr();
  params.grad_loss_stride = grad_loss.stride(0);
  params.logits = rows.const_data_ptr();
  params.labels = label_rows.const_data_ptr<int32_t>();
  params.grad = grad.mutable_data_ptr();
  params.samples = samples;
  params.logits_sample = rows.stride(0);
  params.logits_row = rows.stride(1);
  params.grad_row = pitch;
  params.positions = static_cast<int>(positions);
  params.tokens = static_cast<int>(labels.size(1));
  params.first = static_cast<int>(first);
  params.vocab = static_cast<int>(vocab);
  params.softmax = k == LossKind::softmax;
  params.wide = grad_loss.scalar_type() == at::kDouble;
  params.element = cuda::element_of(logits);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return grad;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("token_loss", &token_loss_cuda);
  m.impl("token_loss_backward", &token_loss_backward_cuda);
}

}  // namespace hrm::ops

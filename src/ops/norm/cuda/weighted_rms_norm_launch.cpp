#include "ops/norm/cuda/weighted_rms_norm.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/norm/weighted_rms_norm_impl.h"

namespace hrm::ops {
namespace {

std::tuple<at::Tensor, at::Tensor> run_weighted_rms_norm_cuda(const at::Tensor& x, const at::Tensor& weight, double eps,
                                                              bool save) {
  check_weighted_rms_norm(x, weight, eps);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!cuda::use_kernel(x)) return reference::weighted_rms_norm(x, weight, eps);
  const at::Tensor rows = x.contiguous(), w = weight.contiguous();
  at::Tensor y = at::empty(x.sizes(), rows.options()), rstd;
  if (save) rstd = at::empty(x.sizes().slice(0, x.dim() - 1), rows.options().dtype(at::kFloat));
  if (x.numel() == 0) return {y, rstd};
  cuda::WeightedRmsNormForward params{};
  params.x = rows.const_data_ptr();
  params.weight = w.const_data_ptr<float>();
  params.y = y.mutable_data_ptr();
  params.rstd = save ? rstd.mutable_data_ptr<float>() : nullptr;
  params.dim = x.size(-1);
  params.rows = x.numel() / params.dim;
  params.eps = static_cast<float>(eps);
  params.element = cuda::element_of(x);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {y, rstd};
}

at::Tensor weighted_rms_norm_cuda(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return std::get<0>(run_weighted_rms_norm_cuda(x, weight, eps, /*save=*/false));
}

std::tuple<at::Tensor, at::Tensor> weighted_rms_norm_forward_cuda(const at::Tensor& x, const at::Tensor& weight,
                                                                  double eps) {
  return run_weighted_rms_norm_cuda(x, weight, eps, /*save=*/true);
}

std::tuple<at::Tensor, at::Tensor> weighted_rms_norm_backward_cuda(const at::Tensor& grad_y, const at::Tensor& x,
                                                                   const at::Tensor& rstd, const at::Tensor& weight,
                                                                   const std::optional<at::Tensor>& grad_x,
                                                                   bool needs_weight) {
  check_weighted_rms_norm_backward(grad_y, x, rstd, weight, grad_x);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!cuda::use_kernel(x)) {
    return reference::weighted_rms_norm_backward(grad_y, x, rstd, weight, grad_x, needs_weight);
  }
  const at::Tensor grad_rows = grad_y.contiguous(), rows = x.contiguous(), factors = rstd.contiguous(),
                   w = weight.contiguous(), second = grad_x ? grad_x->contiguous() : at::Tensor();
  at::Tensor grad = at::empty(x.sizes(), rows.options()), grad_weight, partial;
  const int64_t dim = x.size(-1);
  if (needs_weight) {
    grad_weight = at::empty({dim}, w.options());
    partial = at::empty({cuda::kNormParts, dim}, w.options());
  }
  if (x.numel() == 0) return {grad, needs_weight ? grad_weight.zero_() : grad_weight};
  cuda::WeightedRmsNormBackward params{};
  params.grad_y = grad_rows.const_data_ptr();
  params.x = rows.const_data_ptr();
  params.grad_x2 = grad_x ? second.const_data_ptr() : nullptr;
  params.rstd = factors.const_data_ptr<float>();
  params.weight = w.const_data_ptr<float>();
  params.grad_x = grad.mutable_data_ptr();
  params.partial = needs_weight ? partial.mutable_data_ptr<float>() : nullptr;
  params.grad_weight = needs_weight ? grad_weight.mutable_data_ptr<float>() : nullptr;
  params.dim = dim;
  params.rows = x.numel() / dim;
  params.element = cuda::element_of(x);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {grad, grad_weight};
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("weighted_rms_norm", &weighted_rms_norm_cuda);
  m.impl("weighted_rms_norm_forward", &weighted_rms_norm_forward_cuda);
  m.impl("weighted_rms_norm_backward", &weighted_rms_norm_backward_cuda);
}

}  // namespace hrm::ops

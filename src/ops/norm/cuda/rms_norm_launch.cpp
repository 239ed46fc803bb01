#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/norm/cuda/rms_norm.h"
#include "ops/norm/rms_norm_impl.h"

namespace hrm::ops {
namespace {

RmsNormSaved run_rms_norm_cuda(const at::Tensor& x, const at::Tensor& residual, double eps, bool save) {
  check_rms_norm_residual(x, residual, eps);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!cuda::use_kernel(x)) return reference::rms_norm_residual(x, residual, eps);
  const at::Tensor x_rows = x.contiguous();
  const at::Tensor residual_rows = residual.contiguous();
  RmsNormSaved out;
  out.y = at::empty(x.sizes(), x_rows.options());
  if (save) out.rstd = at::empty(x.sizes().slice(0, x.dim() - 1), x_rows.options().dtype(at::kFloat));
  if (x.numel() == 0) return out;
  cuda::RmsNormForward params{};
  params.x = x_rows.const_data_ptr();
  params.residual = residual_rows.const_data_ptr();
  params.y = out.y.mutable_data_ptr();
  params.rstd = save ? out.rstd.mutable_data_ptr<float>() : nullptr;
  params.rows = x.numel() / x.size(-1);
  params.dim = x.size(-1);
  params.eps = static_cast<float>(eps);
  params.element = cuda::element_of(x);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return out;
}

at::Tensor rms_norm_cuda(const at::Tensor& x, const at::Tensor& residual, double eps) {
  return run_rms_norm_cuda(x, residual, eps, /*save=*/false).y;
}

std::tuple<at::Tensor, at::Tensor> rms_norm_forward_cuda(const at::Tensor& x, const at::Tensor& residual, double eps) {
  const RmsNormSaved saved = run_rms_norm_cuda(x, residual, eps, /*save=*/true);
  return {saved.y, saved.rstd};
}

at::Tensor rms_norm_backward_cuda(const at::Tensor& grad_y, const at::Tensor& y, const at::Tensor& rstd,
                                  const std::optional<at::Tensor>& grad_y2) {
  check_rms_norm_backward(grad_y, y, rstd, grad_y2);
  const c10::cuda::CUDAGuard guard(y.device());
  if (!cuda::use_kernel(y)) return reference::rms_norm_backward(grad_y, y, rstd, grad_y2);
  const at::Tensor grad_y_rows = grad_y.contiguous();
  const at::Tensor grad_y2_rows = grad_y2 ? grad_y2->contiguous() : at::Tensor();
  const at::Tensor y_rows = y.contiguous();
  const at::Tensor rstd_rows = rstd.contiguous();
  at::Tensor grad = at::empty(y.sizes(), y_rows.options());
  if (y.numel() == 0) return grad;
  cuda::RmsNormBackward params{};
  params.grad_y = grad_y_rows.const_data_ptr();
  params.grad_y2 = grad_y2 ? grad_y2_rows.const_data_ptr() : nullptr;
  params.y = y_rows.const_data_ptr();
  params.rstd = rstd_rows.const_data_ptr<float>();
  params.grad = grad.mutable_data_ptr();
  params.rows = y.numel() / y.size(-1);
  params.dim = y.size(-1);
  params.element = cuda::element_of(y);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return grad;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("rms_norm_residual", &rms_norm_cuda);
  m.impl("rms_norm_residual_forward", &rms_norm_forward_cuda);
  m.impl("rms_norm_backward", &rms_norm_backward_cuda);
}

}  // namespace hrm::ops

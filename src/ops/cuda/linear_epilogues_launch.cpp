// linear_swiglu and linear_rms_norm on a GPU.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "hrm/ops/rms_norm.h"
#include "ops/linear_rms_norm_impl.h"
#include "ops/linear_swiglu_impl.h"

namespace hrm::ops {
namespace {

at::Tensor linear_swiglu_cuda(const at::Tensor& x, const at::Tensor& weight) {
  check_linear_swiglu(x, weight);
  const c10::cuda::CUDAGuard guard(x.device());
  return std::get<0>(composed::linear_swiglu(x, weight));
}

std::tuple<at::Tensor, at::Tensor> linear_swiglu_forward_cuda(const at::Tensor& x, const at::Tensor& weight) {
  check_linear_swiglu(x, weight);
  const c10::cuda::CUDAGuard guard(x.device());
  return composed::linear_swiglu(x, weight);
}

std::tuple<at::Tensor, at::Tensor> linear_swiglu_backward_cuda(const at::Tensor& grad_out,
                                                               const at::Tensor& weight_down,
                                                               const at::Tensor& gate_up) {
  check_linear_swiglu_backward(grad_out, weight_down, gate_up);
  const c10::cuda::CUDAGuard guard(grad_out.device());
  return composed::linear_swiglu_backward(grad_out, weight_down, gate_up);
}

at::Tensor linear_rms_norm_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, double eps) {
  check_linear_rms_norm(x, weight, residual, eps);
  const c10::cuda::CUDAGuard guard(x.device());
  return rms_norm_residual(at::linear(x, weight), residual, eps);
}

std::tuple<at::Tensor, at::Tensor> linear_rms_norm_forward_cuda(const at::Tensor& x, const at::Tensor& weight,
                                                                const at::Tensor& residual, double eps) {
  check_linear_rms_norm(x, weight, residual, eps);
  const c10::cuda::CUDAGuard guard(x.device());
  return rms_norm_residual_forward(at::linear(x, weight), residual, eps);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("linear_swiglu", &linear_swiglu_cuda);
  m.impl("linear_swiglu_forward", &linear_swiglu_forward_cuda);
  m.impl("linear_swiglu_backward", &linear_swiglu_backward_cuda);
  m.impl("linear_rms_norm", &linear_rms_norm_cuda);
  m.impl("linear_rms_norm_forward", &linear_rms_norm_forward_cuda);
}

}  // namespace hrm::ops

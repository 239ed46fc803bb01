// The matrix products are cuBLAS through ATen: no kernel of ours here.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "hrm/ops/backend.h"
#include "ops/linear_impl.h"

namespace hrm::ops {
namespace {

at::Tensor linear_cuda(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                       const OptionalTensor& bias, const OptionalTensor& grad_weight, const OptionalTensor& grad_bias) {
  check_linear(x, weight_compute, master, bias, grad_weight, grad_bias);
  return linear_forward(x, weight_compute, bias);
}

void linear_accumulate_cuda(const at::Tensor& grad_weight, const at::Tensor& grad_y, const at::Tensor& x) {
  check_linear_accumulate(grad_weight, grad_y, x);
  const c10::cuda::CUDAGuard guard(x.device());
  const bool narrow = x.scalar_type() != grad_weight.scalar_type();
  if (backend() == Backend::reference || !narrow) return reference::linear_accumulate_(grad_weight, grad_y, x);
  // 16-bit factors, float32 sums, added to the buffer in the product's epilogue: one pass over grad_weight.
  const at::NoGradGuard no_grad;
  at::Tensor out = grad_weight;
  at::addmm_out(out, grad_weight, grad_y.t(), x, at::kFloat);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("linear", &linear_cuda);
  m.impl("linear_accumulate_", &linear_accumulate_cuda);
}

}  // namespace hrm::ops

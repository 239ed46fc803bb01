#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/linear/cuda/swiglu.h"
#include "ops/linear/swiglu_impl.h"

namespace hrm::ops {
namespace {

at::Tensor swiglu_cuda(const at::Tensor& gate_up) {
  check_swiglu(gate_up);
  const c10::cuda::CUDAGuard guard(gate_up.device());
  if (!cuda::use_kernel(gate_up)) return reference::swiglu(gate_up);
  const at::Tensor from = gate_up.contiguous();
  at::Tensor act = at::empty(swiglu_sizes(gate_up), from.options());
  if (act.numel() == 0) return act;
  cuda::SwigluForward params{};
  params.gate_up = from.const_data_ptr();
  params.act = act.mutable_data_ptr();
  params.width = act.size(-1);
  params.rows = act.numel() / params.width;
  params.element = cuda::element_of(from);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return act;
}

at::Tensor swiglu_backward_cuda(const at::Tensor& grad_act, const at::Tensor& gate_up) {
  check_swiglu_backward(grad_act, gate_up);
  const c10::cuda::CUDAGuard guard(gate_up.device());
  if (!cuda::use_kernel(gate_up)) return reference::swiglu_backward(grad_act, gate_up);
  const at::Tensor from = gate_up.contiguous(), grad_from = grad_act.contiguous();
  at::Tensor grad = at::empty(from.sizes(), from.options());
  if (grad.numel() == 0) return grad;
  cuda::SwigluBackward params{};
  params.grad_act = grad_from.const_data_ptr();
  params.gate_up = from.const_data_ptr();
  params.grad_gate_up = grad.mutable_data_ptr();
  params.width = grad_act.size(-1);
  params.rows = grad_act.numel() / params.width;
  params.element = cuda::element_of(from);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return grad;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("swiglu", &swiglu_cuda);
  m.impl("swiglu_backward", &swiglu_backward_cuda);
}

}  // namespace hrm::ops

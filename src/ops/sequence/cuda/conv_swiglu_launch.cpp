#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/sequence/conv_swiglu_impl.h"
#include "ops/sequence/cuda/conv_swiglu.h"

namespace hrm::ops {
namespace {

at::Tensor conv_swiglu_cuda(const at::Tensor& gate_up, const at::Tensor& taps, const at::Tensor& bias) {
  check_conv_swiglu(gate_up, taps, bias);
  const c10::cuda::CUDAGuard guard(gate_up.device());
  if (!cuda::use_kernel(gate_up)) return reference::conv_swiglu(gate_up, taps, bias);
  const at::Tensor from = gate_up.contiguous(), pairs = taps.contiguous(), bias_row = bias.contiguous();
  const at::Tensor act = at::empty({gate_up.size(0), gate_up.size(1), gate_up.size(2) / 2}, from.options());
  if (act.numel() == 0) return act;
  const cuda::ConvSwigluForward params{.gate_up = from.const_data_ptr(),
                                       .taps = pairs.const_data_ptr<float>(),
                                       .bias = bias_row.const_data_ptr<float>(),
                                       .act = act.mutable_data_ptr(),
                                       .batch = act.size(0),
                                       .length = act.size(1),
                                       .width = act.size(2),
                                       .element = cuda::element_of(from)};
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return act;
}

ConvSwigluGrads conv_swiglu_backward_cuda(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& taps,
                                          const at::Tensor& bias, bool needs_weight) {
  check_conv_swiglu_backward(grad_act, gate_up, taps, bias);
  const c10::cuda::CUDAGuard guard(gate_up.device());
  if (!cuda::use_kernel(gate_up)) {
    return reference::conv_swiglu_backward(grad_act, gate_up, taps, bias, needs_weight);
  }
  const at::Tensor from = gate_up.contiguous(), grad_from = grad_act.contiguous();
  const at::Tensor pairs = taps.contiguous(), bias_row = bias.contiguous();
  const at::Tensor grad = at::empty(from.sizes(), from.options());
  const int64_t batch = grad_act.size(0), length = grad_act.size(1), width = grad_act.size(2);
  at::Tensor sums, partial;
  if (needs_weight) sums = at::empty({3 * width}, pairs.options());
  if (grad.numel() == 0) {
    if (needs_weight) sums.zero_();
  } else {
    if (needs_weight) partial = at::empty({cuda::conv_swiglu_parts(batch, length), 3 * width}, pairs.options());
    const cuda::ConvSwigluBackward params{.grad_act = grad_from.const_data_ptr(),
                                          .gate_up = from.const_data_ptr(),
                                          .taps = pairs.const_data_ptr<float>(),
                                          .bias = bias_row.const_data_ptr<float>(),
                                          .grad_gate_up = grad.mutable_data_ptr(),
                                          .partial = needs_weight ? partial.mutable_data_ptr<float>() : nullptr,
                                          .sums = needs_weight ? sums.mutable_data_ptr<float>() : nullptr,
                                          .batch = batch,
                                          .length = length,
                                          .width = width,
                                          .element = cuda::element_of(from)};
    C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  }
  if (!needs_weight) return {grad, at::Tensor(), at::Tensor()};
  return {grad, sums.narrow(0, 0, 2 * width).view({width, 2}), sums.narrow(0, 2 * width, width)};
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("conv_swiglu", &conv_swiglu_cuda);
  m.impl("conv_swiglu_backward", &conv_swiglu_backward_cuda);
}

}  // namespace hrm::ops

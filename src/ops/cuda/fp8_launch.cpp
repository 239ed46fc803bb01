// Quantisation to e4m3 and products of e4m3 tensors on a GPU.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "ops/fp8_impl.h"

namespace hrm::ops {
namespace {

at::Tensor quantize_cuda(const at::Tensor& x, const at::Tensor& slot) {
  check_quantize_fp8(x, slot);
  const c10::cuda::CUDAGuard guard(x.device());
  return reference::quantize_fp8(x, slot);
}

void quantize_many_cuda(at::TensorList from, at::TensorList to, const at::Tensor& slots) {
  check_quantize_many_fp8(from, to, slots);
  const c10::cuda::CUDAGuard guard(slots.device());
  reference::quantize_fp8_(from, to, slots);
}

std::tuple<at::Tensor, at::Tensor> add_cuda(const at::Tensor& a, const at::Tensor& b, const at::Tensor& slot) {
  check_add_fp8(a, b, slot);
  const c10::cuda::CUDAGuard guard(a.device());
  return reference::add_fp8(a, b, slot);
}

at::Tensor linear_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                       const at::Tensor& weight_slot, at::ScalarType dtype) {
  check_linear_fp8(x, weight, x_slot, weight_slot, dtype);
  const c10::cuda::CUDAGuard guard(x.device());
  return reference::linear_fp8(x, weight, x_slot, weight_slot, dtype);
}

at::Tensor linear_swiglu_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                              const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype) {
  check_linear_swiglu_fp8(x, weight, x_slot, weight_slot, act_slot, dtype);
  const c10::cuda::CUDAGuard guard(x.device());
  return reference::linear_swiglu_fp8(x, weight, x_slot, weight_slot, act_slot, dtype);
}

std::tuple<at::Tensor, at::Tensor> linear_rms_norm_cuda(const at::Tensor& x, const at::Tensor& weight,
                                                        const at::Tensor& x_slot, const at::Tensor& weight_slot,
                                                        const at::Tensor& residual, double eps,
                                                        const OptionalTensor& y_slot) {
  check_linear_rms_norm_fp8(x, weight, x_slot, weight_slot, residual, eps, y_slot);
  const c10::cuda::CUDAGuard guard(x.device());
  return reference::linear_rms_norm_fp8(x, weight, x_slot, weight_slot, residual, eps, y_slot);
}

at::Tensor attention_cuda(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos, const OptionalTensor& sin,
                          const at::Tensor& slot) {
  check_attention_fp8(qkv, heads, cos, sin, slot);
  const c10::cuda::CUDAGuard guard(qkv.device());
  return reference::attention_fp8(qkv, heads, cos, sin, slot);
}

void update_scales_cuda(const at::Tensor& slots, const at::Tensor& history, double margin) {
  check_fp8_update_scales(slots, history, margin);
  const c10::cuda::CUDAGuard guard(slots.device());
  reference::fp8_update_scales_(slots, history, margin);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("quantize_fp8", &quantize_cuda);
  m.impl("quantize_fp8_", &quantize_many_cuda);
  m.impl("add_fp8", &add_cuda);
  m.impl("linear_fp8", &linear_cuda);
  m.impl("linear_swiglu_fp8", &linear_swiglu_cuda);
  m.impl("linear_rms_norm_fp8", &linear_rms_norm_cuda);
  m.impl("attention_fp8", &attention_cuda);
  m.impl("fp8_update_scales_", &update_scales_cuda);
}

}  // namespace hrm::ops

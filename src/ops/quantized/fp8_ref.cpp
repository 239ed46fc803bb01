// The readable version, the CPU implementation, and the oracle of the CUDA kernels. No value is read on the host.
#include "ops/quantized/fp8_impl.h"

#include <ATen/ATen.h>

#include <cmath>

#include "ops/linear/swiglu_impl.h"
#include "ops/norm/rms_norm_impl.h"

namespace hrm::ops::reference {

// Non-negative floats are ordered as their bits, and NaNs stand above all of them.
void raise_amax(const at::Tensor& magnitudes, const at::Tensor& slot) {
  if (magnitudes.numel() == 0) return;
  const at::Tensor amax = slot.view(at::kInt).select(0, 2);
  amax.copy_(at::maximum(amax, magnitudes.contiguous().view(at::kInt).amax()));
}

namespace {

// float32 of what a matrix of e4m3 values holds, not yet multiplied by 1 / scale.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                   const at::Tensor& weight_slot) {
  return at::linear(x.to(at::kFloat), weight.to(at::kFloat)).mul_(x_slot.select(0, 1)).mul_(weight_slot.select(0, 1));
}

}  // namespace

at::Tensor quantize_fp8(const at::Tensor& x, const at::Tensor& slot) {
  const at::Tensor wide = x.to(at::kFloat);
  raise_amax(wide.abs(), slot);
  return wide.mul(slot.select(0, 0)).clamp_(-kFp8Max, kFp8Max).to(at::kFloat8_e4m3fn).contiguous();
}

void quantize_fp8_(at::TensorList from, at::TensorList to, const at::Tensor& slots) {
  for (size_t i = 0; i < from.size(); ++i) {
    to[i].copy_(quantize_fp8(from[i], slots.select(0, static_cast<int64_t>(i))));
  }
}

std::tuple<at::Tensor, at::Tensor> add_fp8(const at::Tensor& a, const at::Tensor& b, const at::Tensor& slot) {
  const at::Tensor sum = (a + b).contiguous();
  return {sum, quantize_fp8(sum, slot)};
}

at::Tensor linear_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                      const at::Tensor& weight_slot, at::ScalarType dtype) {
  return product(x, weight, x_slot, weight_slot).to(dtype);
}

at::Tensor linear_swiglu_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                             const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype) {
  return quantize_fp8(swiglu(linear_fp8(x, weight, x_slot, weight_slot, dtype)), act_slot);
}

std::tuple<at::Tensor, at::Tensor> linear_rms_norm_fp8(const at::Tensor& x, const at::Tensor& weight,
                                                       const at::Tensor& x_slot, const at::Tensor& weight_slot,
                                                       const at::Tensor& residual, double eps,
                                                       const OptionalTensor& y_slot) {
  const at::Tensor out = linear_fp8(x, weight, x_slot, weight_slot, residual.scalar_type());
  const at::Tensor y = rms_norm_residual(out, residual, eps).y;
  return {y, y_slot ? quantize_fp8(y, *y_slot) : at::empty({0}, y.options().dtype(at::kFloat8_e4m3fn))};
}

at::Tensor attention_fp8(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos, const OptionalTensor& sin,
                         const at::Tensor& slot) {
  return quantize_fp8(std::get<0>(attention_forward(qkv, heads, cos, sin)), slot);
}

void fp8_update_scales_(const at::Tensor& slots, const at::Tensor& history, double margin) {
  if (slots.numel() == 0) return;
  const at::Tensor scale = slots.select(1, 0), amax = slots.select(1, 2);
  const at::Tensor newest = at::where(at::isfinite(amax), amax, history.select(1, 0));
  history.copy_(at::cat({newest.unsqueeze(1), history.narrow(1, 0, history.size(1) - 1)}, 1));
  const at::Tensor largest = std::get<0>(history.max(1));
  const at::Tensor most = slots.size(1) == 4 ? at::full_like(largest, kFp8Max) : slots.select(1, 3);
  const at::Tensor wanted = (most / std::exp2(margin)).div_(largest);
  scale.copy_(at::where(at::isfinite(wanted).logical_and_(wanted > 0), wanted, scale));
  slots.select(1, 1).copy_(scale.reciprocal());
  amax.zero_();
  if (slots.size(1) == 4) return;
  slots.select(1, 4).copy_(slots.select(1, 1));
  slots.narrow(1, 5, 3).zero_();
}

}  // namespace hrm::ops::reference

// The readable version, the CPU implementation, and the oracle of the CUDA kernels. No value is read on the host.
#include <ATen/ATen.h>

#include "ops/quantized/fp8_impl.h"
#include "ops/quantized/fp8_linear_impl.h"

namespace hrm::ops::reference {

void fp8_raise_amax_(const at::Tensor& x, const at::Tensor& slot) {
  raise_amax(x.to(at::kFloat).abs(), slot);
}

at::Tensor fp8_scale_now(const at::Tensor& x, const at::Tensor& slot, double margin) {
  const at::Tensor now = slot.clone();
  now.select(0, 2).zero_();
  fp8_raise_amax_(x, now);
  raise_amax(now.narrow(0, 2, 1), slot);
  const at::Tensor history = at::zeros({1, 1}, now.options());
  fp8_update_scales_(now.unsqueeze(0), history, margin);
  return now;
}

namespace {

// Values above the largest one by rounding alone are not clamped. As in cuda/fp8.cuh, in float32.
float clamped_above(double largest) {
  return static_cast<float>(largest) * 1.00001F;
}

void quantize_matrix(const at::Tensor& x, const OptionalTensor& values, const OptionalTensor& transposed,
                     const at::Tensor& slot) {
  const at::Tensor wide = x.to(at::kFloat);
  raise_amax(wide.abs(), slot);
  const at::Tensor& like = values ? *values : *transposed;
  const double largest = like.scalar_type() == at::kFloat8_e5m2 ? kFp8MaxE5m2 : kFp8Max;
  const at::Tensor rounded = wide.mul(slot.select(0, 0)).clamp_(-largest, largest).to(like.scalar_type());
  if (values) values->copy_(rounded);
  if (transposed) transposed->copy_(rounded.t());
}

}  // namespace

void quantize_fp8_weights_(at::TensorList weights, at::TensorList values, at::TensorList transposed,
                           const at::Tensor& slots, at::ScalarType compute) {
  slots.select(1, 2).zero_();
  const auto each = [&](const auto& part) {
    for (size_t i = 0; i < weights.size(); ++i) part(i, slots.select(0, static_cast<int64_t>(i)));
  };
  each([&](size_t i, const at::Tensor& slot) { fp8_raise_amax_(weights[i].to(compute), slot); });
  const at::Tensor history = at::zeros({slots.size(0), 1}, slots.options());
  fp8_update_scales_(slots, history, 0);
  each([&](size_t i, const at::Tensor& slot) {
    const OptionalTensor across = transposed[i].numel() > 0 ? OptionalTensor(transposed[i]) : std::nullopt;
    quantize_matrix(weights[i].to(compute), values[i], across, slot);
  });
}

void quantize_fp8_pair_(const at::Tensor& x, const OptionalTensor& values, const OptionalTensor& transposed,
                        const at::Tensor& slot) {
  quantize_matrix(x, values, transposed, slot);
  const bool e5m2 = (values ? *values : *transposed).scalar_type() == at::kFloat8_e5m2;
  const Fp8Counts counts = fp8_counts(slot.unsqueeze(0));
  counts.rows.add_(x.numel() > 0 ? x.size(0) : 0);
  const at::Tensor scaled = x.to(at::kFloat).mul(slot.select(0, 0)).abs();
  counts.clamped.add_(scaled.gt(clamped_above(e5m2 ? kFp8MaxE5m2 : kFp8Max)).sum());
}

at::Tensor fp8_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot, const at::Tensor& b_slot,
                       at::ScalarType dtype, const OptionalTensor& residual) {
  at::Tensor sum = at::linear(a.to(at::kFloat), b.to(at::kFloat));
  sum.mul_(a_slot.select(0, 1)).mul_(b_slot.select(0, 1));
  if (residual) sum.add_(*residual);
  return sum.to(dtype);
}

void fp8_accumulate_(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot,
                     const at::Tensor& b_slot) {
  grad.add_(fp8_product(a, b, a_slot, b_slot, at::kFloat));
}

}  // namespace hrm::ops::reference

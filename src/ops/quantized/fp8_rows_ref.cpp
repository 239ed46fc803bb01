// The readable version, the CPU implementation, and the oracle of the CUDA kernels. No value is read on the host.
#include <ATen/ATen.h>

#include <limits>

#include "hrm/ops/fp8.h"
#include "ops/quantized/fp8_rows_impl.h"

namespace hrm::ops::reference {

Fp8Rows quantize_fp8_rows(const at::Tensor& x, const OptionalTensor& factors) {
  at::Tensor wide = x.to(at::kFloat);
  if (factors) wide = wide * *factors;
  const at::Tensor largest = x.size(1) == 0 ? at::zeros({x.size(0)}, wide.options()) : wide.abs().amax(1);
  // By a tensor, because a GPU multiplies by the inverse of a number.
  const at::Tensor limit = at::full({}, kFp8Max, wide.options());
  const at::Tensor scales = (largest / limit).clamp_min_(std::numeric_limits<float>::min());
  const at::Tensor scaled = wide * scales.reciprocal().unsqueeze(1);
  return {scaled.clamp(-kFp8Max, kFp8Max).to(at::kFloat8_e4m3fn).contiguous(), scales};
}

void transpose_fp8_(const at::Tensor& out, const at::Tensor& ones, const at::Tensor& values) {
  out.view(at::kByte).copy_(values.view(at::kByte).t());
  ones.fill_(1);
}

at::Tensor fp8_rows_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
                            const at::Tensor& b_scales, at::ScalarType dtype, const OptionalTensor& residual) {
  at::Tensor y = at::linear(a.to(at::kFloat), b.to(at::kFloat)).mul_(a_scales.unsqueeze(1)).mul_(b_scales);
  if (residual) y = y + *residual;  // in the wider of both dtypes
  return y.to(dtype);
}

}  // namespace hrm::ops::reference

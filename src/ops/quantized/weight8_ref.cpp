#include <ATen/ATen.h>

#include <limits>

#include "ops/quantized/weight8_impl.h"

namespace hrm::ops::reference {

Weight8 quantize_weight8(const at::Tensor& weight, at::ScalarType format) {
  const double limit = weight8_limit(format);
  const at::Tensor floats = weight.to(at::kFloat);
  // By a tensor, because a GPU multiplies by the inverse of a number.
  const at::Tensor divisor = at::full({}, limit, floats.options());
  const at::Tensor scales = (floats.abs().amax(1) / divisor).clamp_min_(std::numeric_limits<float>::min());
  at::Tensor scaled = floats / scales.unsqueeze(1);
  if (format == at::kChar) scaled.round_().nan_to_num_(0);  // to an integer, which cannot be NaN
  return {.values = scaled.clamp_(-limit, limit).to(format).contiguous(), .scales = scales};
}

void dequantize_weight8_(const at::Tensor& out, const Weight8& from) {
  out.copy_(from.values.to(at::kFloat).mul_(from.scales.unsqueeze(1)));
}

}  // namespace hrm::ops::reference

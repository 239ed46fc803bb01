#pragma once

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// The dtype that sums over values of `type` are kept in: float64 for float64, otherwise float32.
inline at::ScalarType accumulate_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}
inline at::ScalarType accumulate_type(const at::Tensor& x) {
  return accumulate_type(x.scalar_type());
}

// `x` in that dtype.
inline at::Tensor to_accumulate_type(const at::Tensor& x) {
  return x.to(accumulate_type(x));
}

}  // namespace hrm::ops

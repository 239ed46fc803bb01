#pragma once
// What the launchers share.

#include <ATen/core/Tensor.h>

#include "hrm/ops/backend.h"
#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

inline bool has_element(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

// Whether a kernel of ours runs on this dtype; else (float64 in tests, ops.backend=reference) the reference does.
inline bool use_kernel(const at::Tensor& tensor) {
  return backend() == Backend::fused && has_element(tensor.scalar_type());
}

// Of a dtype that has_element().
inline Element element_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kBFloat16) return Element::bf16;
  return tensor.scalar_type() == at::kHalf ? Element::f16 : Element::f32;
}

}  // namespace hrm::ops::cuda

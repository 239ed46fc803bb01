#pragma once
// Hidden states and what is added to them before a level's first layer.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// a + b, rounded once: a, b (...) of one shape, dtype and device -> (...), contiguous.
//
// float32, bfloat16 or float16 (float64 for tests), any strides: what is not contiguous is copied first. The values are
// those of plain ATen. On a GPU the kernel starts early and takes the elements last first, as its neighbours do
// (ops/cuda/sm90/launch.cuh); in the HRM step at batch 384 it is as fast as ATen's.
// Differentiable. Deterministic; on the current stream; can be captured. Throws c10::Error that names the shapes.
at::Tensor inject(const at::Tensor& a, const at::Tensor& b);

}  // namespace hrm::ops

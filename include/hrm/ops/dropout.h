#pragma once
// Dropout (Srivastava et al., JMLR 15, 2014) whose mask depends only on a seed, a step and the place in the tensor. So
// the backward pass keeps no mask, recomputation drops the same elements, and a captured graph draws a new mask when
// the step's value on the device changes.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::ops {

// The mask keeps an element with probability 1 - p. A kept element becomes x / (1 - p), a dropped one 0.
//
// x: any shape, float32, bfloat16 or float16 (float64 on the CPU). Non-contiguous input is copied first. step: 0-dim
// int64 on x's device. p in [0, 1). The factor is float32 and the product is rounded once. Differentiable in x; keeps
// only the step's value. Deterministic. Runs on the current stream; can be captured. Throws c10::Error that names the
// argument that does not fit.
at::Tensor dropout(const at::Tensor& x, const at::Tensor& step, double p, int64_t seed);

// sum += dropout(x), in place: the end of a hand-written backward pass. sum: contiguous, like x.
void dropout_add_(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& step, double p, int64_t seed);

}  // namespace hrm::ops

#pragma once
// The residual stream of a decoding step between layers.

#include <ATen/core/Tensor.h>

#include "hrm/nn/norm.h"
#include "hrm/ops/decode_linear.h"

namespace hrm::nn {

// x (..., D), and what the layer that wrote it has precomputed for the next norm.
struct StepRows {
  at::Tensor x;
  ops::AheadOfNorm ahead = {};
};

// x @ weight^T + residual in a decoding step. next: the norm applied to the result, or null if it is unknown.
StepRows step_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, const RmsNorm* next);

}  // namespace hrm::nn

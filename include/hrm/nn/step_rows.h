#pragma once
// The residual stream of a decoding step on its way through the layers.

#include <ATen/core/Tensor.h>

#include "hrm/nn/norm.h"
#include "hrm/ops/decode_linear.h"

namespace hrm::nn {

// x (..., D), and what the layer that wrote it has made for the norm that it was told of.
struct StepRows {
  at::Tensor x;
  ops::AheadOfNorm ahead = {};
};

// x @ weight^T + residual of a decoding step, whose result goes through `next`, or through no norm that is known: null.
StepRows step_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, const RmsNorm* next);

}  // namespace hrm::nn

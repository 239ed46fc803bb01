#pragma once
// The residual stream of a decoding step between layers.

#include <ATen/core/Tensor.h>

#include "hrm/nn/linear.h"
#include "hrm/nn/norm.h"
#include "hrm/ops/decode_linear.h"

namespace hrm::nn {

// x (..., D), and what the layer that wrote it has precomputed for the next norm.
struct StepRows {
  at::Tensor x;
  ops::AheadOfNorm ahead = {};
};

// A layer of a decoding step, without gradient: norm(x) W^T, or with `gated` the SwiGLU of that. One kernel where
// ops::decode_linear has one: for weights of the compute dtype or in 8 bits, without a bias. An active adapter takes
// one kernel more. Other layers are computed by forward().
ops::PairedRows step_linear(const Linear& linear, const RmsNorm& norm, const StepRows& rows, bool gated = false);

// x W^T + residual, likewise. next: the norm applied to the result, or null if it is unknown.
StepRows step_product(const Linear& linear, const ops::PairedRows& x, const at::Tensor& residual, const RmsNorm* next);

// x W^T, likewise: of a layer that is cut by its inputs, this part's partial sums.
at::Tensor step_sums_of(const Linear& linear, const ops::PairedRows& x);

// Whether these two read pairs of x: where the weight is in e4m3 and large enough.
bool step_reads_pairs(const Linear& linear);

}  // namespace hrm::nn

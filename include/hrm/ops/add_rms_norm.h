#pragma once
// The residual stream of layers that are cut into parts: partial sums of every part are added to it, and the next norm
// follows.

#include <ATen/core/Tensor.h>

#include "hrm/ops/decode_linear.h"
#include "hrm/ops/weighted_rms_norm.h"

namespace hrm::ops {

// Partial sums of one result, not added yet: (parts, n, D), in the order of parts.
struct Pieces {
  at::Tensor sums;
};

// residual + pieces[0] + pieces[1] + ..., in float32 (float64 for float64) in the order of parts, rounded once.
//
// residual: (n, D) of a floating type; undefined: 0. pieces of the same dtype. Returns (n, D). Deterministic.
// Differentiable once: every piece gets the gradient of the result, as a view that repeats it. One pass over memory on
// a GPU. Runs on the current stream; can be captured. Throws c10::Error that names the shapes.
at::Tensor add_pieces(const at::Tensor& residual, const Pieces& pieces);

// x = add_pieces(residual, pieces), and y its RMSNorm with `weight` (weighted_rms_norm_stream).
NormedStream add_rms_norm(const at::Tensor& residual, const Pieces& pieces, const at::Tensor& weight, double eps);

// y = add_pieces(residual, pieces) of a decoding step, and what decode_linear reads of it in front of the norm with
// this weight, (D) float32: on Hopper, for bfloat16 of up to 128 rows and D a multiple of 64, in the same pass.
// Elsewhere, and for an undefined norm, only y. No gradient. Deterministic. Runs on the current stream; can be
// captured.
DecodedAhead add_pieces_ahead(const at::Tensor& residual, const Pieces& pieces, const at::Tensor& next_norm);

}  // namespace hrm::ops

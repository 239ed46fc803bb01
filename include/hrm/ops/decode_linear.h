#pragma once
// The linear layers of a decoding step: one new position of each row, so few rows that reading the weight is what
// costs.

#include <ATen/core/Tensor.h>

#include <optional>

namespace hrm::ops {

struct DecodeLinearOptions {
  std::optional<at::Tensor> norm = {};      // (D) float32 (float64 with float64 x): of an RMSNorm in front
  double eps = 1e-6;                        // of the norm
  std::optional<at::Tensor> residual = {};  // (..., F) of x's dtype: is added. Not with `gated`
  bool gated = false;                       // silu(gate) * up of the product [gate | up]
};

// y = n @ weight^T (+ residual), gated or not, with n = weighted_rms_norm(x, norm, eps) or x: rounded where
// weighted_rms_norm, linear, linear_add and linear_swiglu round.
//
// x (..., D), float32, bfloat16 or float16 (float64 for tests); weight (F, D), gated (2F, D), of x's dtype. Returns
// (..., F), contiguous. No gradient. Deterministic; on the current stream; can be captured. On a GPU a kernel that is
// made for few rows of 16 bits (src/ops/cuda/few_rows.cu, for narrow weights on Hopper sm90/few_rows_split.cu) where it
// is faster: up to 32 rows, or 64 gated ones; up to 8 with the norm in it. There a row's result does not depend on the
// others. It reads the weight while the kernel that was queued directly before still runs: that one must not write it.
// Throws c10::Error that names the shapes.
at::Tensor decode_linear(const at::Tensor& x, const at::Tensor& weight, const DecodeLinearOptions& options = {});

}  // namespace hrm::ops

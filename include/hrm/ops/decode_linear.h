#pragma once
// The linear layers of a decoding step: one new position of each row, so few rows that reading the weight is what
// costs.

#include <ATen/core/Tensor.h>

#include <optional>

namespace hrm::ops {

// What a row kernel prepares for the following norm: rows times the norm's factors, (..., D) of their dtype, and sums
// of their squares, (rows, ceil(D / 64)) float32. Undefined if no kernel prepares it.
struct AheadOfNorm {
  at::Tensor scaled, squares;
};

struct DecodeLinearOptions {
  std::optional<at::Tensor> norm = {};      // (D) float32 (float64 with float64 x): of an RMSNorm in front
  double eps = 1e-6;                        // of the norm
  std::optional<at::Tensor> residual = {};  // (..., F) of x's dtype: is added. Not with `gated`
  bool gated = false;                       // silu(gate) * up of the product [gate | up]
  AheadOfNorm ahead = {};                   // of x and `norm`, from decode_linear_ahead
};

// y = n @ weight^T (+ residual), gated or not, with n = weighted_rms_norm(x, norm, eps) or x: rounded where
// weighted_rms_norm, linear, linear_add and linear_swiglu round.
//
// x (..., D), float32, bfloat16 or float16 (float64 for tests); weight (F, D), gated (2F, D), of x's dtype. Returns
// (..., F), contiguous. No gradient. Deterministic; on the current stream; can be captured. It reads the weight while
// the kernel that was queued directly before still runs: that one must not write it. Throws c10::Error that names the
// shapes.
//
// On a GPU kernels that are made for few rows of 16 bits, where they are faster. Weights of at least 2^21 elements, a
// multiple of eight rows, on Hopper: up to 128 rows, src/ops/linear/cuda/sm90/skinny_gemm_tiles.cu. Others: up to 32
// rows, or 64 gated ones, up to 8 with the norm in it, skinny_gemm.cu, for narrow weights on Hopper
// sm90/skinny_gemm_split.cu. There a row's result does not depend on the others.
//
// With options.ahead the division by the norm comes after the product, in float32, and n is not rounded a second time.
at::Tensor decode_linear(const at::Tensor& x, const at::Tensor& weight, const DecodeLinearOptions& options = {});

struct DecodedAhead {
  at::Tensor y;
  AheadOfNorm ahead;
};

// y = x @ weight^T + residual as decode_linear. If the kernel prepares it (bfloat16 by tiles, up to 128 rows), also
// what a norm of y with the factors next_norm, (F) float32, needs.
DecodedAhead decode_linear_ahead(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual,
                                 const at::Tensor& next_norm);

}  // namespace hrm::ops

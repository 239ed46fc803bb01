#pragma once
// The linear layers of a decoding step. Each row has one new position, so there are few rows and the time goes into
// reading the weight.

#include <ATen/core/Tensor.h>

#include <optional>

namespace hrm::ops {

// What a skinny-GEMM kernel prepares for the RMSNorm that follows it. scaled: the rows times the norm's weight,
// (..., D) of their dtype. squares: partial sums of the rows' squares, (rows, ceil(D / 64)) float32. Undefined if no
// kernel prepared it.
struct AheadOfNorm {
  at::Tensor scaled, squares;
};

struct DecodeLinearOptions {
  std::optional<at::Tensor> norm = {};      // (D) float32 (float64 with float64 x): weight of an RMSNorm of x
  double eps = 1e-6;                        // of the RMSNorm
  std::optional<at::Tensor> residual = {};  // (..., F) of x's dtype, added to the product; not with `gated`
  bool gated = false;                       // return silu(gate) * up, where the product is [gate | up]
  AheadOfNorm ahead = {};                   // for x and `norm`, from decode_linear_ahead
};

// y = n @ weight^T (+ residual), optionally gated, where n = weighted_rms_norm(x, norm, eps), or x without a norm.
// Rounds where weighted_rms_norm, linear, linear_add and linear_swiglu round.
//
// x: (..., D), float32, bfloat16 or float16 (float64 for tests). weight: (F, D), gated (2F, D), of x's dtype. Returns
// (..., F), contiguous. No gradient. Deterministic. Runs on the current stream; can be captured. Throws c10::Error that
// names the shapes.
//
// The weight is read while the kernel queued directly before still runs, so that kernel must not write it.
//
// On a GPU, skinny-GEMM kernels for 16-bit types are used where they are faster:
// - src/ops/linear/cuda/sm90/skinny_gemm_tiles.cu: on Hopper, up to 128 rows, for weights of at least 2^21 elements
//   with a multiple of eight rows.
// - src/ops/linear/cuda/skinny_gemm.cu: other weights, up to 32 rows, 64 if gated, 8 with the norm fused.
// - sm90/skinny_gemm_split.cu: the same for narrow weights on Hopper.
// In these kernels, a row's result does not depend on the other rows.
//
// With options.ahead, the division by the norm follows the product, in float32, and n is not rounded a second time.
at::Tensor decode_linear(const at::Tensor& x, const at::Tensor& weight, const DecodeLinearOptions& options = {});

struct DecodedAhead {
  at::Tensor y;
  AheadOfNorm ahead;
};

// y = x @ weight^T + residual, like decode_linear. If the kernel prepares it (bfloat16 by tiles, up to 128 rows), also
// returns the inputs of an RMSNorm of y with the weight next_norm, (F) float32.
DecodedAhead decode_linear_ahead(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual,
                                 const at::Tensor& next_norm);

}  // namespace hrm::ops

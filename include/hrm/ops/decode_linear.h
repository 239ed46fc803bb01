#pragma once
// The linear layers of a decoding step. Each row has one new position, so there are few rows and the time goes into
// reading the weight.

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "hrm/ops/lora.h"
#include "hrm/ops/paired_rows.h"
#include "hrm/ops/weight8.h"

namespace hrm::ops {

// What a skinny-GEMM kernel prepares for the RMSNorm that follows it. scaled: the rows times the norm's weight,
// (..., D) of their dtype. squares: partial sums of the rows' squares, (rows, ceil(D / 64)) float32. pairs: `scaled` as
// in PairedRows. Undefined if no kernel prepared it.
struct AheadOfNorm {
  at::Tensor scaled, squares, pairs = {};
};

// Elements of a weight from which on tiles multiply, and with them norms are prepared.
inline constexpr int64_t kDecodeTileElements = int64_t{1} << 21;

// A weight as it is stored: of x's dtype, or in 8 bits. A tensor converts to it.
struct DecodeWeight {
  DecodeWeight(const at::Tensor& weight) : values(weight) {}  // NOLINT(google-explicit-constructor)
  // workspace: as in ops::linear_weight8, or undefined.
  explicit DecodeWeight(const Weight8& weight, at::Tensor workspace = {})
      : values(weight.values), scales(weight.scales), workspace(std::move(workspace)) {}

  at::Tensor values;             // (F, D), gated (2F, D)
  at::Tensor scales, workspace;  // undefined unless in 8 bits
};

// What a low-rank adapter adds to a product (hrm/ops/lora.h): scale * u_i B_i^T to the columns of slice i.
struct DecodeAdapter {
  at::Tensor u = {};  // (..., slices * rank) of x's dtype: n A^T, with n as in decode_linear
  at::Tensor B = {};  // (rows of all slices, rank) of x's dtype
  std::vector<LoraSlice> slices = {};
  double scale = 1;
};

struct DecodeLinearOptions {
  std::optional<at::Tensor> norm = {};        // (D) float32 (float64 with float64 x): weight of an RMSNorm of x
  double eps = 1e-6;                          // of the RMSNorm
  std::optional<at::Tensor> residual = {};    // (..., F) of x's dtype, added to the product; not with `gated`
  bool gated = false;                         // return silu(gate) * up, where the product is [gate | up]
  AheadOfNorm ahead = {};                     // for x and `norm`, from decode_linear_ahead
  std::optional<DecodeAdapter> adapter = {};  // added to the product before gate and residual
};

// y = n @ weight^T (+ adapter) (+ residual), optionally gated, where n = weighted_rms_norm(x, norm, eps), or x without
// a norm. Rounds where weighted_rms_norm, linear, linear_add, linear_swiglu, linear_weight8 and lora_add_ round, or
// less often; but see the kernel of pairs below.
//
// x: (..., D), without pairs if there is a norm, whose are those of `ahead`; float32, bfloat16 or float16 (float64 for
// tests). weight: (F, D), gated (2F, D), of x's dtype or in 8 bits with scales (F), gated (2F). Returns (..., F),
// contiguous. No gradient. Deterministic. Runs on the current stream; can be captured. Throws c10::Error that names the
// shapes.
//
// The weight is read while kernels queued before still run: those of decode_linear, back to the last kernel that is
// none of them, and that one. None of these may write the weight, its scales or the adapter's B.
//
// On a GPU, skinny-GEMM kernels for 16-bit types are used where they are faster:
// - src/ops/linear/cuda/sm90/skinny_gemm_tiles.cu: on Hopper, up to 128 rows, for weights of at least 2^21 elements
//   with a multiple of eight rows, and for all such weights with `ahead`. From 33 rows on, also for up to 64 outputs of
//   D >= 1,024, as an adapter's A has. Weights in 8 bits are read as they are, if D is a multiple of 16, and an adapter
//   is added in the epilogue, if its rank is a multiple of 8 and its slices begin and end at multiples of 4.
// - sm90/skinny_gemm_tiles_pairs.cu: weights in e4m3 and up to 48 bfloat16 rows that come with pairs, where D is a
//   multiple of 128. It makes pairs of a gated result or of `scaled`, if their width is such a multiple, too. Numbers
//   below 2^-13 of the largest of their 64 columns lose up to 2^-21 of that one. Each 64 products are summed with about
//   14 bits, these sums in float32.
// - src/ops/linear/cuda/skinny_gemm.cu: other weights, up to 32 rows, 64 if gated, 8 with the norm fused.
// - sm90/skinny_gemm_split.cu: the same for narrow weights on Hopper.
// In each of these kernels, a row's result does not depend on the other rows. Other weights in 8 bits are multiplied by
// linear_weight8, and other adapters are added by lora_add_.
//
// With options.ahead, the division by the norm follows the product, in float32, and n is not rounded a second time.
at::Tensor decode_linear(const PairedRows& x, const DecodeWeight& weight, const DecodeLinearOptions& options = {});

// The same, with y in pairs where the kernel makes them: of a gated product whose x comes in pairs.
PairedRows decode_linear_paired(const PairedRows& x, const DecodeWeight& weight,
                                const DecodeLinearOptions& options = {});

struct DecodedAhead {
  at::Tensor y;
  AheadOfNorm ahead;
};

// y = x @ weight^T (+ adapter) + residual, like decode_linear. If the kernel prepares it (bfloat16 by tiles, up to 128
// rows), also returns the inputs of an RMSNorm of y with the weight next_norm, (F) float32; with pairs, if x has them.
DecodedAhead decode_linear_ahead(const PairedRows& x, const DecodeWeight& weight, const at::Tensor& residual,
                                 const at::Tensor& next_norm, const std::optional<DecodeAdapter>& adapter = {});

}  // namespace hrm::ops

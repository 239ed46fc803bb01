#pragma once
// From tensors to the kernel for few rows.

#include <ATen/core/Tensor.h>

#include <optional>

#include "hrm/ops/decode_linear.h"

namespace hrm::ops::cuda {

struct SkinnyGemmOptions {
  at::Tensor residual = {};  // of the result's shape: is added
  at::Tensor norm = {};      // (inner) float32: x's rows are normalised first
  double eps = 0;
  bool gated = false;         // as swiglu does
  AheadOfNorm ahead = {};     // of x: instead of the norm, where the kernel takes it
  at::Tensor pairs = {};      // of x, or of ahead.scaled (hrm/ops/paired_rows.h)
  at::Tensor next_norm = {};  // (width) float32: `made` gets what a norm of the result needs, where the kernel makes it
  AheadOfNorm* made = nullptr;  // its pairs are of a gated result, too
  at::Tensor scales = {};       // (width), gated (2 width) float32: the weight is in 8 bits (hrm/ops/weight8.h)
  std::optional<DecodeAdapter> adapter = {};
  bool normed = false;  // x comes from a norm: sums in the order that they have with the norm in the kernel
  bool steady = false;  // the kernel queued last does not write the weight, so that it may be read meanwhile
};

// x weight^T, x (..., inner); undefined where the kernel does not take the input or the library is faster.
at::Tensor skinny_gemm(const at::Tensor& x, const at::Tensor& weight, const SkinnyGemmOptions& options = {});

}  // namespace hrm::ops::cuda

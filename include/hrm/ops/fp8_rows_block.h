#pragma once
// Parts of a language model's block that also write their results as rows of e4m3 with a scale for each
// (hrm/ops/fp8_rows.h), for products with frozen weights in 8 bits. So no pass over memory only quantises. Each is an
// op of the compute dtype followed by quantize_fp8_rows, with the same bits where the kernels take the sizes (below).
//
// Inputs are float32, bfloat16 or float16 (float64 on the CPU). Results are for hand-written backward passes and have
// no derivatives. Deterministic, on the current stream, without synchronisation; can be captured. The kernels take
// widths of whole 16 bytes, up to 8,192 for the norm, 16,384 for SwiGLU and 32,768 columns of heads with 16-bit
// elements, half of that with float32. Anything else, CPUs and ops.backend=reference take the ops one by one. They
// throw c10::Error that names the shapes.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hrm/ops/qkv_heads.h"

namespace hrm::ops {

struct Fp8RowsBeside {
  at::Tensor wide;    // (rows, columns) in the compute dtype; undefined where it was not asked for
  at::Tensor values;  // (rows, columns) e4m3
  at::Tensor scales;  // (rows) float32
};

// quantize_fp8_rows of x (rows, width), which is `wide`.
Fp8RowsBeside fp8_rows_beside(const at::Tensor& x, const at::Tensor& factors);

// weighted_rms_norm_forward of x (rows, width); rstd (rows) float32. Rows of more than 2,048 16-bit or 1,024 32-bit
// elements are summed in another order than by that op, so their rstd may differ in its last bit.
struct NormedRows {
  Fp8RowsBeside y;
  at::Tensor rstd;
};
NormedRows weighted_rms_norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps, bool wide);

// swiglu of gate_up (rows, 2 width).
Fp8RowsBeside swiglu_rows(const at::Tensor& gate_up, bool wide);

// swiglu_backward. factors: (2 width) float32, what columns are multiplied by before they are quantised; not in `wide`.
Fp8RowsBeside swiglu_backward_rows(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& factors,
                                   bool wide);

// The gradient of qkv from qkv_heads_backward without those of the norms' weights, as rows (B T, (Hq + 2 Hkv) hd).
// factors: one for each column, likewise. qkv: undefined without norms.
Fp8RowsBeside qkv_heads_backward_rows(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                                      const at::Tensor& qkv, const QkvHeadOptions& options, const at::Tensor& factors,
                                      bool wide);

}  // namespace hrm::ops

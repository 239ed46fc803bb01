#pragma once
// Parts of a language model's block that write their results in 8 bits for the products that read them
// (hrm/ops/fp8_linear.h), so that no pass over memory only quantises. Each is an op of the compute dtype followed by
// quantize_fp8_pair: the values are rounded to the compute dtype first, and raise the slot's amax.
//
// Inputs are float32, bfloat16 or float16 and have `rows` rows. With a `margin`, a result has a scale of its own values
// (fp8_scale_now); then the parts are not fused. Results are for hand-written backward passes and have no derivatives.
// Deterministic, on the current stream, without synchronisation; can be captured. The kernels need rows and widths that
// are multiples of 16; other sizes, CPUs and ops.backend=reference take the ops one by one. They throw c10::Error that
// names the shapes.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "hrm/ops/fp8_linear.h"
#include "hrm/ops/qkv_heads.h"

namespace hrm::ops {

struct Fp8Pair {
  at::Tensor values;      // (rows, columns)
  at::Tensor transposed;  // (columns, rows); undefined where it was not asked for
  at::Tensor slot;        // whose scale they have
};

// quantize_fp8_pair of a matrix, with the values as they stand.
Fp8Pair fp8_pair(const at::Tensor& x, const at::Tensor& slot, bool e5m2, bool transposed,
                 std::optional<double> margin = std::nullopt);

// weighted_rms_norm_forward of x (rows, width) in e4m3; rstd (rows) float32.
struct Fp8Normed {
  Fp8Pair y;
  at::Tensor rstd;
};
Fp8Normed weighted_rms_norm_fp8(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& slot,
                                bool transposed, std::optional<double> margin = std::nullopt);

// What quantised the y of Fp8Normed, transposed: (width, rows) in e4m3, from x and rstd, so that it need not be kept.
// The same bits, by the scale of `slot`, whose amax stays as it is.
at::Tensor weighted_rms_norm_transposed_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                                            const at::Tensor& slot);

// swiglu(x @ weight^T) in e4m3, not transposed, and gate_up = x @ weight^T in `dtype`, bfloat16 or float16 (float32:
// not fused). On a Hopper GPU one kernel, for sums of at most 2,048 terms.
struct Fp8Swiglu {
  Fp8Pair act;
  at::Tensor gate_up;
};
Fp8Swiglu fp8_linear_swiglu(const Fp8Pair& x, const Fp8Weight& weight, const at::Tensor& act_slot, at::ScalarType dtype,
                            std::optional<double> margin = std::nullopt);

// swiglu of gate_up (rows, 2 width) in e4m3, not transposed.
Fp8Pair swiglu_fp8(const at::Tensor& gate_up, const at::Tensor& slot, std::optional<double> margin = std::nullopt);

// swiglu_backward, in e4m3 or e5m2. For the gradient of the weight that read swiglu(gate_up), also the transposed e4m3
// values of that, which so need not be kept: (width, rows), by the scale of act_slot, whose amax stays as it is.
struct Fp8SwigluGradient {
  Fp8Pair gate_up;
  at::Tensor act_transposed;  // undefined unless `trains_down`
};
Fp8SwigluGradient swiglu_backward_fp8(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& slot,
                                      bool e5m2, const at::Tensor& act_slot, bool trains_gate_up, bool trains_down,
                                      std::optional<double> margin = std::nullopt);

// The gradient of qkv from qkv_heads_backward of heads without norms, as rows (B T, (Hq + 2 Hkv) hd). cos and sin may
// be undefined: no rotation.
Fp8Pair qkv_heads_backward_fp8(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                               const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& slot, bool e5m2,
                               bool transposed, std::optional<double> margin = std::nullopt);

}  // namespace hrm::ops

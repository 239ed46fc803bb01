#pragma once
// Matrix products of 8-bit operands, for passes without gradient. Values are e4m3: 4 bits of exponent, 3 of mantissa
// (Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433). Each tensor has one scale, computed from
// the largest magnitudes of earlier steps (delayed scaling).
//
// A *slot* is the state of one quantised tensor: a contiguous float32 row {scale, 1 / scale, amax, 0}. Quantising x
// stores saturate(x * scale), at most 448 in magnitude, rounded to nearest even; NaN stays NaN. It also raises amax to
// the largest |x|, where NaN counts as the largest. A quantised tensor stands for its values times slot[1]. Only
// fp8_update_scales_ changes scales, so readers of a tensor find the scale that it was written with.
//
// Products are summed in float32, multiplied by both inverse scales and rounded to `dtype`. The work after the product
// rounds like the 16-bit op, and the rounded value is quantised. Matrix sizes must be multiples of 16. `dtype` is
// bfloat16, float16 or float32. Slots and written tensors are contiguous; other tensors may have any strides.
//
// The reference (CPU, and any GPU with ops.backend=reference) multiplies the values in float32. GPUs of compute
// capability 8.9 or later use tensor cores, with our kernels or the library's. Tensor cores keep fewer bits of a sum
// than float32 has (about 14 on Hopper). So results agree to a fraction of a row's scale, not to the last bit. Older
// GPUs, `dtype` float32, and sizes that the library refuses use the reference.
//
// All ops are deterministic (the order of an atomic maximum does not matter), run on the current stream without
// synchronisation and can be captured. None has a derivative: recording one is an error. They throw c10::Error that
// names the shapes.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace hrm::ops {

constexpr double kFp8Max = 448;  // the largest finite e4m3 value

// Returns (count, 4): slots with scale 1.
at::Tensor make_fp8_slots(int64_t count, at::Device device);

// x (any shape; float32, bfloat16 or float16) -> e4m3 of x's shape.
at::Tensor quantize_fp8(const at::Tensor& x, const at::Tensor& slot);

// The same for many tensors: quantises from[i] to to[i] (e4m3) with row i of `slots`, (n, 4). All of `from` have one
// dtype.
void quantize_fp8_(at::TensorList from, at::TensorList to, const at::Tensor& slots);

// Returns a + b, rounded to their dtype, and the same in e4m3.
std::tuple<at::Tensor, at::Tensor> add_fp8(const at::Tensor& a, const at::Tensor& b, const at::Tensor& slot);

// x (..., K) e4m3 @ weight^T, weight (N, K) e4m3 -> (..., N) in `dtype`.
at::Tensor linear_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                      const at::Tensor& weight_slot, at::ScalarType dtype);

// Like linear_swiglu: silu(gate) * up for [gate | up] = x @ weight^T, weight (2F, K) -> e4m3 (..., F).
at::Tensor linear_swiglu_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                             const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype);

// Like linear_rms_norm: y = rms(residual + x @ weight^T). residual and y: (..., D) in residual's dtype, weight: (D, K).
// Also returns y in e4m3, or an empty tensor without y_slot.
std::tuple<at::Tensor, at::Tensor> linear_rms_norm_fp8(const at::Tensor& x, const at::Tensor& weight,
                                                       const at::Tensor& x_slot, const at::Tensor& weight_slot,
                                                       const at::Tensor& residual, double eps,
                                                       const std::optional<at::Tensor>& y_slot);

// Like attention_: qkv (B, L, 3 * heads * head_dim), whose memory may be overwritten -> e4m3 (B, L, heads * head_dim).
// The attention itself is computed in qkv's dtype. cos and sin may be undefined: no rotation.
at::Tensor attention_fp8(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin,
                         const at::Tensor& slot);

// Call it once per step, with all slots (n, 4) and their history (n, H), newest maximum first. Shifts the history by
// one and puts amax in front; a non-finite amax is replaced by the previous newest entry. Then scale = 448 / 2^margin /
// max(history) if that is positive and finite, otherwise scale is unchanged. amax = 0. Wide slots (n, 8) name the
// largest value of their format in place of 448 (hrm/ops/fp8_linear.h).
void fp8_update_scales_(const at::Tensor& slots, const at::Tensor& history, double margin);

}  // namespace hrm::ops

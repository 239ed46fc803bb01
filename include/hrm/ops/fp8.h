#pragma once
// Matrix products of 8-bit operands for passes that need no gradient: e4m3 values (4 bits of exponent, 3 of mantissa;
// Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433) with one scale for each tensor, taken from
// the largest magnitudes of earlier steps (delayed maximum).
//
// A *slot* is the state of one quantised tensor, a contiguous float32 row {scale, 1 / scale, amax, 0}. Quantising x
// stores saturate(x * scale), at most 448 in size, rounded to nearest even (a NaN stays one), and raises amax to the
// largest |x|, a NaN counting as the largest. A quantised tensor stands for its values times slot[1]; scales change in
// fp8_update_scales_ alone, so that whoever reads a tensor finds the scale that it was written with.
//
// Products sum in float32, are multiplied by both inverse scales and rounded to `dtype`; what follows them is rounded
// as in the op of 16 bits, and quantised from the rounded value. The sizes of matrices are multiples of 16. `dtype` is
// bfloat16, float16 or float32. Tensors have any strides except slots and written tensors, which are contiguous.
//
// The reference (CPU, and any GPU with ops.backend=reference) multiplies the values in float32. On a GPU of compute
// capability 8.9 or later tensor cores do, our kernels or the library's; they keep fewer bits of a sum than float32
// has (about 14 on Hopper), so that results agree to a part of a row's scale, not to the last bit. Products on an older
// GPU, those of `dtype` float32 and those of sizes that the library refuses take the reference. All are deterministic
// (the order of an atomic maximum does not matter), run on the current stream without synchronisation and can be
// captured. None has a derivative: recording one is an error. Throw c10::Error that names the shapes.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace hrm::ops {

constexpr double kFp8Max = 448;  // the largest finite e4m3 value

// (count, 4) slots of scale 1.
at::Tensor make_fp8_slots(int64_t count, at::Device device);

// x (any shape; float32, bfloat16 or float16) -> e4m3, x's shape.
at::Tensor quantize_fp8(const at::Tensor& x, const at::Tensor& slot);

// The same for many tensors: to[i] (e4m3) from from[i], by row i of `slots`, (n, 4). All of `from` have one dtype.
void quantize_fp8_(at::TensorList from, at::TensorList to, const at::Tensor& slots);

// a + b, rounded to their dtype, and that in e4m3.
std::tuple<at::Tensor, at::Tensor> add_fp8(const at::Tensor& a, const at::Tensor& b, const at::Tensor& slot);

// x (..., K) e4m3 @ weight^T, weight (N, K) e4m3 -> (..., N) in `dtype`.
at::Tensor linear_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                      const at::Tensor& weight_slot, at::ScalarType dtype);

// As linear_swiglu: silu(gate) * up for [gate | up] = x @ weight^T, weight (2F, K) -> e4m3 (..., F).
at::Tensor linear_swiglu_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                             const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype);

// As linear_rms_norm: y = rms(residual + x @ weight^T), residual and y (..., D) in residual's dtype, weight (D, K);
// and y in e4m3, an empty tensor without y_slot.
std::tuple<at::Tensor, at::Tensor> linear_rms_norm_fp8(const at::Tensor& x, const at::Tensor& weight,
                                                       const at::Tensor& x_slot, const at::Tensor& weight_slot,
                                                       const at::Tensor& residual, double eps,
                                                       const std::optional<at::Tensor>& y_slot);

// As attention_: qkv (B, L, 3 * heads * head_dim), whose memory may be overwritten -> e4m3 (B, L, heads * head_dim).
// The attention itself is computed in qkv's dtype. cos and sin may be undefined: no rotation.
at::Tensor attention_fp8(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin,
                         const at::Tensor& slot);

// Once per step, for all slots (n, 4) and their history (n, H), the newest maximum in front: the history moves on by
// one and takes amax (where that is not finite, its newest entry once more); scale = 448 / 2^margin / max(history)
// where that is positive and finite, otherwise it stays; amax = 0.
void fp8_update_scales_(const at::Tensor& slots, const at::Tensor& history, double margin);

}  // namespace hrm::ops

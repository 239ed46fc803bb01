#pragma once
// A linear layer whose three products of a training step have 8-bit operands (Micikevicius et al., "FP8 Formats for
// Deep Learning", arXiv 2209.05433). Activations and weights are e4m3; gradients are e4m3 or e5m2, which has two bits
// of mantissa and five of exponent. Each tensor has one scale (hrm/ops/fp8.h).
//
//   y = x8 w8^T              grad_x = g8 w8              grad_weight += g8^T x8, in float32
//
// Tensor cores multiply 8-bit operands only along their rows. So the gradients' products read x and w transposed. Of x,
// only the transposed 8-bit values are kept for the backward pass: one byte an element, or none if x itself is kept
// anyway. The weight is transposed where its product needs it, or once for all.
//
// A *wide slot* is a contiguous float32 row {scale, 1 / scale, amax, largest, 1 / scale, counts}: a slot as in
// hrm/ops/fp8.h, the largest finite value of the tensor's format (448 or 57,344), and the inverse scale again, at an
// address that the library reads it from. fp8_update_scales_ takes rows of this length, too, and clears the counts.
// They are integers: the rows that were quantised by this slot (32 bits), and how many of their values were clamped
// (64 bits), i.e. |x| * scale was above 1.00001 largest. NaN is not clamped. Counts of weights stay zero.
//
// The number of rows and both sizes of the weight must be multiples of 16. The reference (CPU, and any GPU with
// ops.backend=reference) multiplies the values in float32. GPUs of compute capability 8.9 or later use the library's
// products. All ops are deterministic, run on the current stream without synchronisation and can be captured once
// their shape has been used. They throw c10::Error that names the shapes.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace hrm::ops {

constexpr int64_t kFp8WideSlot = 8;
constexpr double kFp8MaxE5m2 = 57344;

// (count, 8): wide slots with scale 1, of e4m3 tensors or of e5m2 tensors.
at::Tensor make_fp8_wide_slots(int64_t count, bool e5m2, at::Device device);

// Views of the counts of wide slots (count, 8).
struct Fp8Counts {
  at::Tensor rows;     // (count) int32
  at::Tensor clamped;  // (count) int64
};
Fp8Counts fp8_counts(const at::Tensor& slots);

// x (n, K), float32, bfloat16 or float16 -> its 8-bit values (n, K), and the same transposed, (K, n). What is not asked
// for is undefined. Raises the wide slot's amax, and counts.
std::tuple<at::Tensor, at::Tensor> quantize_fp8_pair(const at::Tensor& x, const at::Tensor& slot, bool e5m2,
                                                     bool values = true, bool transposed = true);
// The same into tensors that are there.
void quantize_fp8_pair_(const at::Tensor& x, const at::Tensor& values, const at::Tensor& transposed,
                        const at::Tensor& slot);

// Raises the wide slot's amax to the largest |x|, where NaN counts as the largest. x: any shape, float32, bfloat16 or
// float16. What quantising would record, without quantising.
void fp8_raise_amax_(const at::Tensor& x, const at::Tensor& slot);

// Weights, all at once: matrix i gets its scale in row i of `slots` (n, 8), contiguous, from its own largest magnitude
// as in fp8_update_scales_ without history and with margin 0, and its e4m3 values. All of one dtype, contiguous. Each
// number is rounded to `compute` first: masters give the bits that their copies in that dtype would give. transposed:
// the same values transposed, or an empty tensor for each matrix that is not wanted so.
void quantize_fp8_weights_(at::TensorList weights, at::TensorList values, at::TensorList transposed,
                           const at::Tensor& slots, at::ScalarType compute);

// Current scaling: a fresh wide slot of slot's format, whose scale is largest / 2^margin / max |x|. Where that maximum
// is zero or not finite, the scale is slot's. Raises the amax of `slot`, too; the fresh one begins with zero. Reads x
// once.
at::Tensor fp8_scale_now(const at::Tensor& x, const at::Tensor& slot, double margin);

// A weight (out, in) in e4m3.
struct Fp8Weight {
  at::Tensor values;           // (out, in), contiguous
  at::Tensor slot;             // wide
  at::Tensor transposed = {};  // (in, out), contiguous; undefined: made where a product needs it
};
// `transposed`, or made now.
at::Tensor transposed_weight(const Fp8Weight& weight);

// x (..., in), bfloat16, float16 or float32 -> (..., out) in x's dtype. The gradients of y are quantised to e5m2 or
// e4m3 by `grad_slot`. As in ops::linear, the weight's gradient is not returned to autograd but added to grad_weight
// (out, in), float32, which is required if `master`, the leaf behind the copies, requires a gradient. With `margin`, x
// and the gradient have scales of their own values (fp8_scale_now) and not those of their slots, whose amax they raise.
// residual: shaped and typed like the result, added before the only rounding; its gradient is that of y.
//
// x_is_kept: something else keeps x for its backward pass. Then this op keeps x, too, which takes no memory, and
// quantises it once more in its own backward pass: the same bits, and counted twice. The scale in its slot must not
// change in between.
at::Tensor fp8_linear(const at::Tensor& x, const Fp8Weight& weight, const at::Tensor& x_slot,
                      const at::Tensor& grad_slot, bool e5m2, const at::Tensor& master,
                      const std::optional<at::Tensor>& grad_weight, std::optional<double> margin = std::nullopt,
                      const std::optional<at::Tensor>& residual = std::nullopt, bool x_is_kept = false);

// a (m, k) @ b (n, k)^T of 8-bit matrices, each e4m3 or e5m2, in `dtype`, times both inverse scales (+ residual, (m, n)
// of `dtype`, before the rounding): a part of a hand-written pass. Sums over more than 2,048 terms leave the tensor
// cores, which keep about 14 bits, every 128 terms.
at::Tensor fp8_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot, const at::Tensor& b_slot,
                       at::ScalarType dtype, const std::optional<at::Tensor>& residual = std::nullopt);
// grad (m, n) += the same, in float32, always with sums outside the tensor cores.
void fp8_accumulate_(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot,
                     const at::Tensor& b_slot);

}  // namespace hrm::ops

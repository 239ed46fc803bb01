#pragma once
// Products of 8-bit floats (e4m3) with a scale for each row of both operands. The scale belongs to the outer dimension
// of a product, so that it leaves the sum: y[i][j] = a_scale[i] * b_scale[j] * sum_k a[i][k] * b[j][k].
//
// A row v is stored as numbers of e4m3 and a float32 scale s = max |v| / 448, and stands for s times the numbers
// (Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433). Scales are at least 2^-126, so a row of
// zeros stays zeros. A row with a number that is not finite stands for a row with numbers that are not finite.
//
// None of these ops has a derivative. They are deterministic, run on the current stream and can be captured. They throw
// c10::Error that names the shapes.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace hrm::ops {

// x: (n, width) float32, bfloat16 or float16 (float64 on the CPU), any strides. factors: (width) float32, contiguous;
// where given, each column of x is multiplied by its factor in float32 first. Returns values (n, width) Float8_e4m3fn
// and scales (n) float32. A value is x * (1 / scale) in float32, rounded once to nearest even and clamped to +-448.
// The same bits on every device, but for the sign of numbers that are not numbers.
//
// On a GPU, a row is read once if 16 bytes of x hold whole numbers of its elements and it has at most 64 KiB; otherwise
// twice (src/ops/quantized/cuda/fp8_rows.cu).
std::tuple<at::Tensor, at::Tensor> quantize_fp8_rows(const at::Tensor& x,
                                                     const std::optional<at::Tensor>& factors = std::nullopt);

// Weights (out, in), all at once: what quantize_fp8_rows gives of each, and of each transposed. Lists have one entry a
// weight. Weights are contiguous and of one dtype: float32, bfloat16 or float16.
struct Fp8WeightRows {
  at::TensorList weights;
  at::TensorList values, transposed;         // (out, in) and (in, out) Float8_e4m3fn, contiguous
  at::TensorList scales, transposed_scales;  // (out) and (in) float32, contiguous
};
// Each number is rounded to `compute` first: masters give the bits that their copies in that dtype would give. Row i of
// `slots`, wide slots (n, 8) of fp8_linear.h, gets the largest magnitude of weight i, and the scale of that. On a GPU
// each weight is read twice, if its sizes are multiples of 16.
void quantize_fp8_weight_rows_(const Fp8WeightRows& w, const at::Tensor& slots, at::ScalarType compute);

// out (columns, rows) = values (rows, columns) transposed, both Float8_e4m3fn and contiguous; ones: (columns) float32,
// contiguous, becomes all 1: the scales of the rows of `out`, whose own scales were folded into the other operand.
// `out` may not overlap `values`.
void transpose_fp8_(const at::Tensor& out, const at::Tensor& ones, const at::Tensor& values);

// The same as a new tensor. values: any e4m3 matrix, contiguous.
at::Tensor transposed_fp8(const at::Tensor& values);

// a (m, k) @ b (n, k)^T, Float8_e4m3fn, times a_scales (m) and b_scales (n) float32 (+ residual (m, n), of `dtype`) as
// (m, n) of `dtype`: float32, bfloat16 or float16 (float64 on the CPU). All but residual contiguous.
//
// The reference multiplies and adds in float32. GPUs of compute capability 9.0 or later multiply by cuBLASLt where it
// can, for bfloat16 and float16, any m, and n and k that are multiples of 16. Sums of more than 2,048 terms then leave
// the tensor cores on the way, so that their errors stay below those of the format. Elsewhere the reference runs.
at::Tensor fp8_rows_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
                            const at::Tensor& b_scales, at::ScalarType dtype,
                            const std::optional<at::Tensor>& residual = std::nullopt);

}  // namespace hrm::ops

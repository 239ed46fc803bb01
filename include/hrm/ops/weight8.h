#pragma once
// Frozen weights in 8 bits with one scale for each output: a row w of the weight is kept as 8-bit numbers v and one
// float32 scale s, and stands for s * v. Symmetric: there is no offset.
//
//   e4m3   s = max |w| / 448, v = w / s rounded to an 8-bit float with 4 bits of exponent and 3 of mantissa
//          (Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433)
//   int8   s = max |w| / 127, v = w / s rounded to an integer
//
// Both round to nearest even, after a division in float32. Scales are at least 2^-126, so a row of zeros stays zeros.
// A weight takes one byte an element and four bytes a row, compared with two bytes an element in bfloat16.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace hrm::ops {

// A matrix (out, in); both tensors contiguous, on one device.
struct Weight8 {
  at::Tensor values;  // (out, in), Float8_e4m3fn or Char (int8)
  at::Tensor scales;  // (out) float32
  // Of an e4m3 weight, both or none: what products for the gradient of x read. With them, no backward pass transposes.
  at::Tensor transposed = {};  // (in, out)
  at::Tensor ones = {};        // (in) float32

  bool defined() const { return values.defined(); }
  int64_t bytes() const;
};
// The same weight with `transposed` and `ones`, as new tensors. The weight is e4m3.
Weight8 with_transposed(const Weight8& weight);
// bytes() of a weight of this shape.
int64_t weight8_bytes(int64_t out, int64_t in);

// weight: (out, in), float32, bfloat16 or float16 (float64 on the CPU), not empty, any strides. format: Float8_e4m3fn
// or Char. A row with an element that is not finite gets a scale that is not finite, and its values mean nothing.
//
// No derivative. Deterministic, with the same bits on every device. Runs on the current stream; can be captured. Throws
// c10::Error that names what does not fit.
Weight8 quantize_weight8(const at::Tensor& weight, at::ScalarType format);

// out (out, in), float32, bfloat16 or float16 (float64 on the CPU), contiguous = scale * value in float32, rounded once
// to the dtype of `out`. No derivative. Deterministic, with the same bits on every device. Runs on the current stream;
// can be captured. Throws c10::Error that names what does not fit.
void dequantize_weight8_(const at::Tensor& out, const Weight8& from);
// The same as a new tensor.
at::Tensor dequantize_weight8(const Weight8& from, at::ScalarType dtype);

// x weight^T (+ residual), (..., in) -> (..., out), in x's dtype: float32, bfloat16 or float16 (float64 on the CPU).
// x and residual (..., out) get gradients; the weight has none. Saves the 8-bit weight.
//
// The reference dequantises the weight to x's dtype and multiplies (ops::linear, ops::linear_add). workspace: (out, in)
// contiguous, of x's dtype, is what it dequantises into, in the backward pass again; without one it allocates. The
// contents are valid only for the product that follows.
//
// On GPUs of compute capability 8.0 or later, bfloat16 and float16 rows up to kWeight8Rows are multiplied by a kernel
// that reads the 8-bit values (src/ops/quantized/cuda/weight8_linear.cu), if `in` is a multiple of 16. It sums in
// float32, multiplies the sum by the scale and rounds once. A row's result does not depend on the other rows. This
// kernel reads the weight while the kernel queued directly before still runs, so that kernel must not write it.
//
// fp8_products: more rows are quantised to e4m3 with a scale for each of them and multiplied by the 8-bit weight
// (hrm/ops/fp8_rows.h) where takes_fp8_rows() says so. The gradient of x is quantised likewise, after its columns were
// multiplied by the weight's scales, and multiplied by the weight's bytes, transposed into the workspace or as the
// weight keeps them. With ops.backend=reference such a device multiplies the same quantised rows in plain ATen.
// Elsewhere, and on the CPU, fp8_products changes nothing.
//
// Deterministic. Runs on the current stream; can be captured. Throws c10::Error that names the shapes.
at::Tensor linear_weight8(const at::Tensor& x, const Weight8& weight,
                          const std::optional<at::Tensor>& residual = std::nullopt,
                          const std::optional<at::Tensor>& workspace = std::nullopt, bool fp8_products = false);

// grad weight, (..., out) -> (..., in): the gradient of x alone, as the backward pass of linear_weight8 computes it,
// with its workspace and its choice between both products. No derivative. Deterministic. Runs on the current stream;
// can be captured. Throws c10::Error that names the shapes.
at::Tensor linear_weight8_grad_x(const at::Tensor& grad, const Weight8& weight,
                                 const std::optional<at::Tensor>& workspace = std::nullopt, bool fp8_products = false);

// Whether fp8_products multiplies bfloat16 rows in 8 bits there: on GPUs of compute capability 9.0 or later whose
// library has products with scales for rows.
bool has_fp8_products(at::Device device);

inline constexpr int64_t kWeight8Rows = 32;

// Whether fp8_products multiplies rows like these, (..., in) or for the gradient (..., out): on devices with
// has_fp8_products(), if the weight is e4m3, the rows are more than kWeight8Rows in bfloat16 or float16, and `in` and
// `out` are multiples of 16.
bool takes_fp8_rows(const at::Tensor& rows, const Weight8& weight);

// linear_weight8_grad_x of rows that are quantised already: values (n, out) e4m3 and scales (n) of the gradient, whose
// columns were multiplied by the weight's scales. Returns (n, in) of `dtype`. The weight is e4m3.
at::Tensor linear_weight8_grad_rows(const at::Tensor& values, const at::Tensor& scales, const Weight8& weight,
                                    const std::optional<at::Tensor>& workspace, at::ScalarType dtype);

}  // namespace hrm::ops

#pragma once
// NF4, a 4-bit format for frozen weights (Dettmers et al., "QLoRA", arXiv 2305.14314). Each block of 64 numbers is
// divided by its largest magnitude ("absmax") and rounded to the nearest of 16 levels, which are quantiles of the
// normal distribution (appendix E).
//
// Double quantisation also stores the magnitudes in 8 bits. Their mean is subtracted. Blocks of 256 differences are
// divided by their own largest magnitude and rounded to the nearest of 256 levels. The paper calls these an 8-bit
// float. We use the levels of its library, bitsandbytes: the signed dynamic map (Dettmers, "8-Bit Approximations for
// Parallelism in Deep Learning", arXiv 1511.04561). It has the powers of ten from 1e-6 to 1, each with twice as many
// linear steps as the one below.
//
// So the values match those of models fine-tuned with that library, except for rounding. Our levels are rounded once
// (72 of the 256 differ from its levels in the last bit), and we divide by magnitudes where it multiplies by their
// reciprocals. Ties go to the lower level, as in bitsandbytes.
//
// A weight needs 0.5 bytes per element, 1/64 for the block's magnitude and 1/4096 for the magnitude's scale: 0.516
// bytes, compared with 2 in bfloat16. Without double quantisation it is 0.5625.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace hrm::ops {

inline constexpr int64_t kNf4Block = 64;         // elements, in C order, per magnitude
inline constexpr int64_t kNf4AbsmaxBlock = 256;  // magnitudes per scale

// n elements in NF4; contiguous, on one device.
struct Nf4Tensor {
  at::Tensor codes;   // (ceil(n / 2)) uint8: element 2i in the upper four bits of byte i, 2i + 1 in the lower ones
  at::Tensor absmax;  // (ceil(n / 64)): float32, or uint8 with double quantisation
  at::Tensor scales;  // (ceil(n / 64 / 256)) float32; empty without double quantisation
  at::Tensor offset;  // (1) float32, mean of the magnitudes; empty without double quantisation

  bool defined() const { return codes.defined(); }
  int64_t bytes() const;
};
// bytes() of a weight with this many elements and double quantisation.
int64_t nf4_bytes(int64_t elements);

// weight: float32, bfloat16 or float16 (float64 on the CPU), any shape, not empty. Non-contiguous input is copied
// first. All elements must be finite: a non-finite magnitude corrupts its block, and through the mean all others. The
// last block may be short.
//
// No derivative. Runs on the current stream; cannot be captured (double quantisation copies tables from the host).
// Gives the same bits on every device: divisions are correctly rounded, and the mean is summed in float64 and rounded
// once. Throws c10::Error that names what does not fit.
Nf4Tensor nf4_quantize(const at::Tensor& weight, bool double_quantized = true);

// The second half of double quantisation, of an Nf4Tensor with the float32 magnitudes of a whole weight: they become
// uint8, with scales and offset. So nf4_quantize(weight) is nf4_quantize(weight, false), of all of it or of pieces of
// whole blocks, and then this: the same bits.
void nf4_quantize_magnitudes(Nf4Tensor& quantized);

// out = the numbers that the codes represent: level * absmax in float32, rounded once to the dtype of `out`.
//
// out: float32, bfloat16 or float16 (float64 on the CPU), contiguous, with the number of quantised elements, on the
// codes' device. No derivative. Deterministic, with the same bits on every device. Runs on the current stream; can be
// captured. Throws c10::Error that names what does not fit.
void nf4_dequantize_(const at::Tensor& out, const Nf4Tensor& from);

// The same as a new tensor with the given sizes.
at::Tensor nf4_dequantize(const Nf4Tensor& from, at::IntArrayRef sizes, at::ScalarType dtype);

// x weight^T (+ residual), (..., in) -> (..., out), in x's dtype: float32, bfloat16 or float16 (float64 on the CPU).
//
// workspace: (out, in), contiguous, of x's dtype. The reference dequantises the weight into it and multiplies
// (ops::linear, ops::linear_add); the contents are valid only for that product.
//
// On GPUs of compute capability 8.0 or later, bfloat16 and float16 rows up to kNf4Rows are multiplied by a kernel that
// reads the codes (src/ops/quantized/cuda/nf4_linear.cu), if `in` is a multiple of 64. It multiplies by the numbers
// that nf4_dequantize_ gives, sums in float32 and rounds once. A row's result does not depend on the other rows. This
// kernel reads the weight while the kernel queued directly before still runs, so that kernel must not write it.
//
// No derivative. Deterministic. Runs on the current stream; can be captured. Throws c10::Error that names what does not
// fit.
at::Tensor linear_nf4(const at::Tensor& x, const Nf4Tensor& weight, const at::Tensor& workspace,
                      const std::optional<at::Tensor>& residual = std::nullopt);

inline constexpr int64_t kNf4Rows = 32;

}  // namespace hrm::ops

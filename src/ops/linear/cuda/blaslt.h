#pragma once
// Matrix products by cuBLASLt, with an algorithm of our choice for every shape.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace hrm::ops::cuda {

// What decides over the algorithm of out (m, n) = a (m, k) @ b (k, n) + beta * out; rows side by side unless `_t`.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool a_t = false, b_t = false;                    // stored as its transpose
  int64_t a_pitch = 0, b_pitch = 0, out_pitch = 0;  // elements from one stored row to the next
  int a_align = 0, b_align = 0, out_align = 0;      // bytes, of the addresses: a power of two, at most 256
  at::ScalarType in = at::kFloat, out = at::kFloat;
  at::ScalarType in_b = at::kFloat;  // of b: as `in`, but for 8-bit floats
  bool accumulates = false;          // beta = 1
  bool tf32 = false;
  bool exact = false;       // of 8-bit floats: sums leave the tensor cores on the way
  bool row_scales = false;  // of 8-bit floats: a scale for each row of a and each column of b

  bool operator<(const GemmShape& other) const;
};

// The shape in words that stay: the key of the file, e.g. "384x512x3072 nn bf16>f32 +=, pitch 3072 512 512, ...".
std::string gemm_key(const GemmShape& shape);

// The shape of such a product; false where cuBLASLt's layouts cannot describe the tensors, there is nothing to
// multiply, or the dtypes are none of f32, bf16, f16 for both a and b with out in the same or in float32, and no 8-bit
// floats with out in any of these.
bool describe_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulates, GemmShape& shape);

// out = a @ b (+ out, if `accumulates`), any strides; sums in float32 (TF32 where LibTorch allows it for cuBLAS). On
// the current stream. The first use of a shape times cuBLASLt's candidates, which waits for the device; while a graph
// is captured it takes the first proposal instead, and then keeps to it. Deterministic: algorithms that split a sum do
// so with float32 parts that are added in one order. False, and nothing written, where cuBLASLt cannot do it.
// `sum`, of out's shape, strides and dtype: is added instead of what out held, with `accumulates`.
bool blaslt_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulates,
                 const at::Tensor& sum = {});

// What an 8-bit product is multiplied by: a float32 for each operand, on the device, or (`rows`) m of them for a and n
// for b.
struct GemmScales {
  const float* a;  // at addresses of whole 16 bytes
  const float* b;
  bool exact;
  bool rows = false;
};

// out (m, n) = a (m, k) @ b (n, k)^T times both scales (+ out or sum, if `accumulates`) of 8-bit floats, contiguous;
// otherwise as blaslt_gemm, also with ops.gemm_tuning=off, which takes the first proposal.
bool scaled_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulates,
                 const GemmScales& scales, const at::Tensor& sum = {});

// Whether cuBLASLt multiplies e4m3 with GemmScales::rows on this GPU, with a result of this dtype. Asked once for each;
// false while a graph is captured before the library was used at all.
bool multiplies_scaled_rows(at::Device device, at::ScalarType out);

// As blaslt_gemm, for products that are worth it: with ops.gemm_tuning=auto and enough work. The others are ATen's.
bool tuned_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulates,
                const at::Tensor& sum = {});

}  // namespace hrm::ops::cuda

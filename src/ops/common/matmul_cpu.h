#pragma once
// Matrix products of the CPU kernels.

#include <ATen/core/Tensor.h>

#include <optional>

namespace hrm::ops::cpu {

using OptionalTensor = std::optional<at::Tensor>;

// a @ b for matrices (M, K) and (K, N) of one dtype, either of them possibly a transposed view. Returns (M, N),
// contiguous. Large float32 products go to oneDNN, where this LibTorch has it: at::mm takes MKL, which is slower by
// half on processors that are not Intel's (measured: docs/benchmarks.md).
at::Tensor matrix_product(const at::Tensor& a, const at::Tensor& b);

// x @ weight^T (+ bias) for x (..., in), weight (out, in) and bias (out). Returns (..., out).
at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias = {});

// sum += a @ b, in place.
void add_mm_(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

}  // namespace hrm::ops::cpu

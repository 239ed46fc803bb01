#pragma once
// From tensors to the kernel for products with few summands.

#include <ATen/core/Tensor.h>

namespace hrm::ops::cuda {

// out += a b, out (N, width), a (N, rank), b (rank, width), all of one dtype; false, and nothing written, where the
// kernel does not take it.
bool add_low_rank_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

}  // namespace hrm::ops::cuda

#pragma once
// From tensors to the kernel for few rows.

#include <ATen/core/Tensor.h>

namespace hrm::ops::cuda {

// x weight^T (+ residual, of the result's shape), or gated as swiglu does, x (..., inner); undefined where the kernel
// does not take the input.
at::Tensor product_of_few_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual = {},
                               bool gated = false);

}  // namespace hrm::ops::cuda

#pragma once
// The projection at the end of a sub-block, plus the residual.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// y = x @ weight_compute^T + residual, (..., out) like residual. On a GPU, the product's epilogue adds the residual in
// float32 and rounds once; on the CPU, the product is rounded first. The residual's gradient is y's. Everything else,
// including the master's gradient, is as in hrm/ops/linear.h for a layer without a bias.
at::Tensor linear_add(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                      const at::Tensor& residual);

}  // namespace hrm::ops

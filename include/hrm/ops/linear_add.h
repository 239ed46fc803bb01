#pragma once
// The product at the end of a sub-block, with the residual added to it.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// y = x @ weight_compute^T + residual, (..., out) like residual. On a GPU the sum is made in the product's epilogue, in
// float32 and rounded once; elsewhere the product is rounded first. The residual's gradient is y's. All else, the
// gradient of the master among it, as hrm/ops/linear.h has it for a layer without a bias.
at::Tensor linear_add(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                      const at::Tensor& residual);

}  // namespace hrm::ops

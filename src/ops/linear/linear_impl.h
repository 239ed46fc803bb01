#pragma once
// What the files of linear share.

#include <ATen/core/Tensor.h>

#include <optional>

#include "ops/common/optional_tensor.h"

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_linear(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                  const OptionalTensor& bias, const OptionalTensor& grad_weight, const OptionalTensor& grad_bias);
void check_linear_accumulate(const at::Tensor& grad_weight, const at::Tensor& grad_y, const at::Tensor& x);
void check_linear_grad_x(const at::Tensor& grad_y, const at::Tensor& weight);
void check_linear_grad_x_add(const at::Tensor& grad_x, const at::Tensor& grad_y, const at::Tensor& weight);

// A backward pass is going to add to this buffer: clears it if it is stale (hrm/ops/stale_gradient.h).
void before_adding_(const at::Tensor& buffer);

// y = x @ weight^T + bias, the forward pass on every device.
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias);

// These are built with the CUDA kernels only.
// For tests: the forward pass on a Hopper GPU takes our kernel wherever it fits, also where cuBLAS is faster.
void set_always_tiles(bool always);
bool always_tiles();

namespace reference {

void linear_accumulate_(const at::Tensor& grad_weight, const at::Tensor& grad_y, const at::Tensor& x);

}  // namespace reference
}  // namespace hrm::ops

#pragma once
// What the files of linear_swiglu share: the input checks and the same work by simpler ops.

#include <ATen/core/Tensor.h>

#include <tuple>

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_linear_swiglu(const at::Tensor& x, const at::Tensor& weight);
void check_linear_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& weight_down, const at::Tensor& gate_up);

// A matrix product, then ops::swiglu: the oracle, and what runs where no kernel of ours fits.
namespace composed {

std::tuple<at::Tensor, at::Tensor> linear_swiglu(const at::Tensor& x, const at::Tensor& weight);
at::Tensor linear_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& weight_down, const at::Tensor& gate_up);

}  // namespace composed
}  // namespace hrm::ops

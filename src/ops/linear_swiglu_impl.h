#pragma once
// What the files of linear_swiglu share: the input checks and the same work by simpler ops.

#include <ATen/core/Tensor.h>

#include <tuple>

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_linear_swiglu(const at::Tensor& x, const at::Tensor& weight);
void check_linear_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& weight_down, const at::Tensor& gate_up);

#if HRM_WITH_CUDA
// Whether linear_swiglu and linear_swiglu_fp8 run as the kernel that computes act in the registers of the products
// (ops/cuda/sm90/swiglu_registers.cuh), where a Hopper kernel fits. Off by default: it has not been measured yet.
void set_swiglu_in_registers(bool in_registers);
bool swiglu_in_registers();
#endif

// A matrix product, then ops::swiglu: the oracle, and what runs where no kernel of ours fits.
namespace composed {

std::tuple<at::Tensor, at::Tensor> linear_swiglu(const at::Tensor& x, const at::Tensor& weight);
std::tuple<at::Tensor, at::Tensor> linear_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& weight_down,
                                                          const at::Tensor& gate_up);

}  // namespace composed
}  // namespace hrm::ops

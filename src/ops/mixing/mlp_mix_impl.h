#pragma once
// What the files of mlp_mix share: the input checks and the plain ATen reference.
//
//   hrm::mlp_mix           y alone
//   hrm::mlp_mix_forward   y and rstd
//   hrm::mlp_mix_backward  the gradient of h; adds the weights' gradients

#include <ATen/core/Tensor.h>

#include <tuple>

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_mlp_mix(const at::Tensor& h, const at::Tensor& weight_gate_up, const at::Tensor& weight_down, double eps);
void check_mlp_mix_backward(const at::Tensor& grad_y, const at::Tensor& h, const at::Tensor& y, const at::Tensor& rstd,
                            const at::Tensor& weight_gate_up, const at::Tensor& weight_down,
                            const at::Tensor& grad_weight_gate_up, const at::Tensor& grad_weight_down);

// These are built with the CUDA kernels only.
// For tests: the backward pass on a Hopper GPU takes the kernels that take turns, also where one kernel does it all.
void set_mix_takes_turns(bool always);

namespace reference {

std::tuple<at::Tensor, at::Tensor> mlp_mix(const at::Tensor& h, const at::Tensor& weight_gate_up,
                                           const at::Tensor& weight_down, double eps);
at::Tensor mlp_mix_backward(const at::Tensor& grad_y, const at::Tensor& h, const at::Tensor& y, const at::Tensor& rstd,
                            const at::Tensor& weight_gate_up, const at::Tensor& weight_down,
                            const at::Tensor& grad_weight_gate_up, const at::Tensor& grad_weight_down);

}  // namespace reference
}  // namespace hrm::ops

#pragma once
// What the files of swiglu share: the input checks and the plain ATen reference.

#include <ATen/core/Tensor.h>

#include <vector>

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_swiglu(const at::Tensor& gate_up);
void check_swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up);

// The sizes of gate_up with the last halved.
std::vector<int64_t> swiglu_sizes(const at::Tensor& gate_up);

namespace reference {

at::Tensor swiglu(const at::Tensor& gate_up);
at::Tensor swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up);

}  // namespace reference

namespace cpu {

// float32 only.
at::Tensor swiglu(const at::Tensor& gate_up);
// The same into `act`; both contiguous.
void swiglu_out(const at::Tensor& gate_up, const at::Tensor& act);
at::Tensor swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up);

}  // namespace cpu
}  // namespace hrm::ops

#pragma once
// What the files of conv_swiglu share: the input checks, the plain ATen reference, and the CPU loops.

#include "hrm/ops/conv_swiglu.h"

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_conv_swiglu(const at::Tensor& gate_up, const at::Tensor& taps, const at::Tensor& bias);
void check_conv_swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& taps,
                                const at::Tensor& bias);

using ConvSwigluGrads = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

namespace reference {

at::Tensor conv_swiglu(const at::Tensor& gate_up, const at::Tensor& taps, const at::Tensor& bias);
ConvSwigluGrads conv_swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& taps,
                                     const at::Tensor& bias, bool needs_weight);

}  // namespace reference

namespace cpu {

// float32 only.
at::Tensor conv_swiglu(const at::Tensor& gate_up, const at::Tensor& taps, const at::Tensor& bias);
ConvSwigluGrads conv_swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& taps,
                                     const at::Tensor& bias, bool needs_weight);

}  // namespace cpu
}  // namespace hrm::ops

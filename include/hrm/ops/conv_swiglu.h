#pragma once
// The gate of a SwiGLU with a short causal convolution behind it, in one pass (ConvSwiGLU of the Universal Reasoning
// Model, arXiv 2512.14693).

#include <ATen/core/Tensor.h>

#include <tuple>

namespace hrm::ops {

// silu(c) with u = silu(gate) * up and c[t] = w0 * u[t - 1] + w1 * u[t] + bias per channel, where u[-1] = 0. The
// convolution runs over the L positions of one row and never from one row to another.
//
// gate_up: (B, L, 2F) = [gate | up]; float32, bfloat16 or float16 (float64 for tests), any strides; non-contiguous
// input is copied first. taps: (F, 2) = [w0, w1] and bias: (F), both float32 (float64 for float64). Returns (B, L, F)
// of gate_up's dtype.
//
// Computed in float32 and rounded once. Differentiable once in all three; keeps only the inputs. Deterministic. Runs on
// the current stream; can be captured. Throws c10::Error that names the shapes.
at::Tensor conv_swiglu(const at::Tensor& gate_up, const at::Tensor& taps, const at::Tensor& bias);

// The gradients of gate_up, (B, L, 2F), rounded once, of taps (F, 2) and of bias (F), where grad_act (B, L, F) is the
// gradient of conv_swiglu(...). The last two are undefined if needs_weight is false.
std::tuple<at::Tensor, at::Tensor, at::Tensor> conv_swiglu_backward(const at::Tensor& grad_act,
                                                                    const at::Tensor& gate_up, const at::Tensor& taps,
                                                                    const at::Tensor& bias, bool needs_weight = true);

}  // namespace hrm::ops

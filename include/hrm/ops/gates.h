#pragma once
// Products with one output that end in a sigmoid, as in HRM language models (hrm/models/hrm_lm.h,
// hrm/models/hrm_core.h): the gate in front of the decoder's memory, and halting probabilities with their loss. In
// plain ATen they are many launches for a few thousand numbers. Shapes: B rows, P memory vectors, D width, C cycles.
//
// All: float32, bfloat16 or float16 activations (float64 for tests), any strides (non-contiguous input is copied
// first). weight (1, D) and bias (1) are float32 leaves (float64 with float64 activations), read without a copy in the
// compute dtype. Their gradients are not returned to autograd but added in float32 to weight.grad() and bias.grad()
// (hrm/ops/linear.h: gradient_buffer). Sums are in float32, in a fixed order: deterministic. Differentiable once. On
// the current stream; can be captured. They throw c10::Error that names the shapes.

#include <ATen/core/Tensor.h>

#include <tuple>

namespace hrm::ops {

struct BridgeGate {
  at::Tensor gate;    // (B, 1) float32
  at::Tensor memory;  // (B, P, D) in bridge's dtype
};

// gate = clamp(scale * sigmoid(z . weight + bias) * warmup + offset, 0, 1), memory = gate * bridge, rounded once.
//
// z (B, D), bridge (B, P, D), of one dtype. warmup: 0-dim float32 (float64 with float64) on their device, without a
// gradient, so its value may change from replay to replay; undefined: 1. Differentiable in z, weight, bias and bridge,
// through gate and memory. Where the clamp is active, the first three get zeros.
BridgeGate bridge_gate(const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& bridge,
                       double scale, double offset, const at::Tensor& warmup = {});

// p[c, b] = sigmoid(states[c][b, 0] . weight + bias), (C, B) float32. states: C tensors (B, M, D) of one shape and
// dtype, of which only the first vectors are read.
at::Tensor halt_probabilities(at::TensorList states, const at::Tensor& weight, const at::Tensor& bias);

// mean(gate) * mean over rows of (sum over cycles of halt - target)^2, 0-dim. halt (C, B), gate B numbers, float32
// (float64 for tests). The gate gets no gradient.
at::Tensor halting_loss(const at::Tensor& halt, const at::Tensor& gate, double target);

}  // namespace hrm::ops

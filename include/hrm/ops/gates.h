#pragma once
// Single-output projections with a sigmoid, as in HRM language models (hrm/models/hrm_lm.h, hrm/models/hrm_core.h): the
// gate in front of the decoder's memory, and the halting probabilities with their loss. Plain ATen needs many launches
// for a few thousand numbers. Shapes: B rows, P memory vectors, D width, C cycles.
//
// Activations are float32, bfloat16 or float16 (float64 for tests), with any strides (non-contiguous input is copied
// first). weight (1, D) and bias (1) are float32 leaves (float64 with float64 activations), read directly, without a
// compute copy. Their gradients are not returned to autograd but added in float32 to weight.grad() and bias.grad()
// (hrm/ops/linear.h: gradient_buffer).
//
// Sums are float32 in a fixed order, so the ops are deterministic. Differentiable once. They run on the current stream
// and can be captured. They throw c10::Error that names the shapes.

#include <ATen/core/Tensor.h>

#include <tuple>

namespace hrm::ops {

struct BridgeGate {
  at::Tensor gate;    // (B, 1) float32
  at::Tensor memory;  // (B, P, D) in bridge's dtype
};

// gate = clamp(scale * sigmoid(z . weight + bias) * warmup + offset, 0, 1). memory = gate * bridge, rounded once.
//
// z: (B, D), bridge: (B, P, D), of one dtype. warmup: 0-dim float32 (float64 with float64) on the same device, without
// a gradient; its value may change between replays of a graph. Undefined: 1. Differentiable in z, weight, bias and
// bridge, through gate and memory. Where the clamp is active, the gradients of z, weight and bias are zero.
BridgeGate bridge_gate(const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& bridge,
                       double scale, double offset, const at::Tensor& warmup = {});

// p[c, b] = sigmoid(states[c][b, 0] . weight + bias), (C, B) float32. states: C tensors (B, M, D) of one shape and
// dtype. Only the first vector of each row is read.
at::Tensor halt_probabilities(at::TensorList states, const at::Tensor& weight, const at::Tensor& bias);

// mean(gate) * mean over rows of (sum over cycles of halt - target)^2, 0-dim. halt: (C, B). gate: B numbers. Both
// float32 (float64 for tests). The gate gets no gradient.
at::Tensor halting_loss(const at::Tensor& halt, const at::Tensor& gate, double target);

}  // namespace hrm::ops

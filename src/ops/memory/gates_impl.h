#pragma once
// What the files of gates share. See hrm/ops/gates.h for the letters.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "hrm/ops/gates.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {

// The constants of gate = clamp(scale * open * warmup + offset, 0, 1), with open = sigmoid(z . weight + bias).
struct GateRange {
  double scale, offset;
  OptionalTensor warmup;
};

// gate (B, 1), memory (B, P, D), and open (B, 1), which the backward pass needs.
using BridgeGateResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
BridgeGateResult bridge_gate_forward(const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bias,
                                     const at::Tensor& bridge, const GateRange& range);
// grad_z (B, D) and grad_bridge (B, P, D), the latter undefined without grad_memory; adds to grad_weight and grad_bias.
std::tuple<at::Tensor, at::Tensor> bridge_gate_backward_(const OptionalTensor& grad_gate,
                                                         const OptionalTensor& grad_memory, const at::Tensor& z,
                                                         const at::Tensor& weight, const at::Tensor& bridge,
                                                         const at::Tensor& open, const GateRange& range,
                                                         const OptionalTensor& grad_weight,
                                                         const OptionalTensor& grad_bias);
at::Tensor halt_probabilities_forward(at::TensorList states, const at::Tensor& weight, const at::Tensor& bias);
// The gradients of all states, (C, B, M, D), from that of p (C, B); adds to grad_weight and grad_bias.
at::Tensor halt_probabilities_backward_(const at::Tensor& grad_p, const at::Tensor& p, at::TensorList states,
                                        const at::Tensor& weight, const OptionalTensor& grad_weight,
                                        const OptionalTensor& grad_bias);
// The loss, and slope (B): its derivative in each halt[c, b].
std::tuple<at::Tensor, at::Tensor> halting_loss_forward(const at::Tensor& halt, const at::Tensor& gate, double target);

// Throw c10::Error with the op's name and the shapes. The backward passes have no bias.
void check_bridge_gate(const at::Tensor& z, const at::Tensor& weight, const OptionalTensor& bias,
                       const at::Tensor& bridge, const OptionalTensor& warmup);
void check_bridge_gate_backward(const OptionalTensor& grad_gate, const OptionalTensor& grad_memory, const at::Tensor& z,
                                const at::Tensor& weight, const at::Tensor& bridge, const at::Tensor& open,
                                const OptionalTensor& warmup, const OptionalTensor& grad_weight,
                                const OptionalTensor& grad_bias);
void check_halt_probabilities(at::TensorList states, const at::Tensor& weight, const OptionalTensor& bias);
void check_halt_probabilities_backward(const at::Tensor& grad_p, const at::Tensor& p, at::TensorList states,
                                       const at::Tensor& weight, const OptionalTensor& grad_weight,
                                       const OptionalTensor& grad_bias);
void check_halting_loss(const at::Tensor& halt, const at::Tensor& gate);

namespace reference {

BridgeGateResult bridge_gate(const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& bridge, const GateRange& range);
std::tuple<at::Tensor, at::Tensor> bridge_gate_backward_(const OptionalTensor& grad_gate,
                                                         const OptionalTensor& grad_memory, const at::Tensor& z,
                                                         const at::Tensor& weight, const at::Tensor& bridge,
                                                         const at::Tensor& open, const GateRange& range,
                                                         const OptionalTensor& grad_weight,
                                                         const OptionalTensor& grad_bias);
at::Tensor halt_probabilities(at::TensorList states, const at::Tensor& weight, const at::Tensor& bias);
at::Tensor halt_probabilities_backward_(const at::Tensor& grad_p, const at::Tensor& p, at::TensorList states,
                                        const at::Tensor& weight, const OptionalTensor& grad_weight,
                                        const OptionalTensor& grad_bias);
std::tuple<at::Tensor, at::Tensor> halting_loss(const at::Tensor& halt, const at::Tensor& gate, double target);

}  // namespace reference
}  // namespace hrm::ops

#include "hrm/ops/gates.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"
#include "ops/memory/gates_impl.h"

namespace hrm::ops {
namespace {

void check_weight(const char* op, const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias) {
  const int64_t width = x.size(-1);
  const auto fits = [&](const at::Tensor& t, at::IntArrayRef sizes) {
    return t.sizes() == sizes && t.scalar_type() == accumulate_type(x) && t.device() == x.device();
  };
  TORCH_CHECK(
      at::isFloatingType(x.scalar_type()) && width > 0 && fits(weight, {1, width}) && (!bias || fits(*bias, {1})), op,
      ": weight (1, D) and bias (1) must be ", accumulate_type(x), " on the device of floating-point vectors, got ",
      weight.sizes(), " ", weight.scalar_type(), " on ", weight.device(), bias ? ", " : "",
      bias ? bias->sizes() : at::IntArrayRef(), " and vectors ", x.sizes(), " ", x.scalar_type(), " on ", x.device());
}

void check_buffers(const char* op, const at::Tensor& weight, const OptionalTensor& grad_weight,
                   const OptionalTensor& grad_bias) {
  const auto fits = [&](const OptionalTensor& grad, int64_t count) {
    return !grad || (grad->numel() == count && grad->is_contiguous() && grad->scalar_type() == weight.scalar_type() &&
                     grad->device() == weight.device());
  };
  TORCH_CHECK(fits(grad_weight, weight.numel()) && fits(grad_bias, 1), op,
              ": grad_weight and grad_bias must be contiguous ", weight.scalar_type(), " (1, ", weight.size(1),
              ") and (1) on ", weight.device(), ", got ", grad_weight ? grad_weight->sizes() : at::IntArrayRef(),
              " and ", grad_bias ? grad_bias->sizes() : at::IntArrayRef());
}

}  // namespace

void check_bridge_gate(const at::Tensor& z, const at::Tensor& weight, const OptionalTensor& bias,
                       const at::Tensor& bridge, const OptionalTensor& warmup) {
  TORCH_CHECK(z.dim() == 2 && bridge.dim() == 3 && bridge.size(0) == z.size(0) && bridge.size(2) == z.size(1),
              "hrm::bridge_gate: z (B, D) and bridge (B, P, D) do not fit, got ", z.sizes(), " and ", bridge.sizes());
  TORCH_CHECK(bridge.scalar_type() == z.scalar_type() && bridge.device() == z.device(), "hrm::bridge_gate: z is ",
              z.scalar_type(), " on ", z.device(), ", bridge ", bridge.scalar_type(), " on ", bridge.device(),
              " (shapes ", z.sizes(), " and ", bridge.sizes(), ")");
  check_weight("hrm::bridge_gate", z, weight, bias);
  TORCH_CHECK(!warmup || (warmup->dim() == 0 && warmup->scalar_type() == accumulate_type(z) &&
                          warmup->device() == z.device() && !warmup->requires_grad()),
              "hrm::bridge_gate: warmup must be one ", accumulate_type(z), " on ", z.device(),
              " without a gradient, got ", warmup->sizes(), ", ", warmup->scalar_type(), " on ", warmup->device());
}

void check_bridge_gate_backward(const OptionalTensor& grad_gate, const OptionalTensor& grad_memory, const at::Tensor& z,
                                const at::Tensor& weight, const at::Tensor& bridge, const at::Tensor& open,
                                const OptionalTensor& warmup, const OptionalTensor& grad_weight,
                                const OptionalTensor& grad_bias) {
  check_bridge_gate(z, weight, {}, bridge, warmup);
  const auto fits = [&](const at::Tensor& t, at::IntArrayRef sizes, at::ScalarType type) {
    return t.sizes() == sizes && t.scalar_type() == type && t.device() == z.device();
  };
  const std::vector<int64_t> gates{z.size(0), 1};
  TORCH_CHECK(fits(open, gates, accumulate_type(z)) && (!grad_gate || fits(*grad_gate, gates, accumulate_type(z))),
              "hrm::bridge_gate_backward_: open and grad_gate must be ", accumulate_type(z), " of shape ",
              at::IntArrayRef(gates), ", got ", open.sizes(), grad_gate ? " and " : "",
              grad_gate ? grad_gate->sizes() : at::IntArrayRef());
  TORCH_CHECK(!grad_memory || fits(*grad_memory, bridge.sizes(), bridge.scalar_type()),
              "hrm::bridge_gate_backward_: grad_memory must be like bridge, ", bridge.sizes(), " ",
              bridge.scalar_type(), ", got ", grad_memory->sizes(), " ", grad_memory->scalar_type());
  check_buffers("hrm::bridge_gate_backward_", weight, grad_weight, grad_bias);
}

void check_halt_probabilities(at::TensorList states, const at::Tensor& weight, const OptionalTensor& bias) {
  TORCH_CHECK(!states.empty() && states[0].dim() == 3 && states[0].size(1) > 0,
              "hrm::halt_probabilities: needs states (B, M, D) of at least one vector, got ",
              states.empty() ? at::IntArrayRef() : states[0].sizes());
  for (const at::Tensor& state : states) {
    TORCH_CHECK(state.sizes() == states[0].sizes() && state.scalar_type() == states[0].scalar_type() &&
                    state.device() == states[0].device(),
                "hrm::halt_probabilities: all states must be alike, got ", states[0].sizes(), " ",
                states[0].scalar_type(), " and ", state.sizes(), " ", state.scalar_type());
  }
  check_weight("hrm::halt_probabilities", states[0], weight, bias);
}

void check_halt_probabilities_backward(const at::Tensor& grad_p, const at::Tensor& p, at::TensorList states,
                                       const at::Tensor& weight, const OptionalTensor& grad_weight,
                                       const OptionalTensor& grad_bias) {
  check_halt_probabilities(states, weight, {});
  const std::vector<int64_t> sizes{static_cast<int64_t>(states.size()), states[0].size(0)};
  for (const at::Tensor* tensor : {&grad_p, &p}) {
    TORCH_CHECK(tensor->sizes() == at::IntArrayRef(sizes) && tensor->scalar_type() == weight.scalar_type() &&
                    tensor->device() == weight.device(),
                "hrm::halt_probabilities_backward_: grad_p and p must be ", weight.scalar_type(), " of shape ",
                at::IntArrayRef(sizes), ", got ", tensor->sizes(), " ", tensor->scalar_type());
  }
  check_buffers("hrm::halt_probabilities_backward_", weight, grad_weight, grad_bias);
}

void check_halting_loss(const at::Tensor& halt, const at::Tensor& gate) {
  TORCH_CHECK(halt.dim() == 2 && gate.numel() == halt.size(1),
              "hrm::halting_loss: halt (C, B) and gate of B numbers do not fit, got ", halt.sizes(), " and ",
              gate.sizes());
  TORCH_CHECK((halt.scalar_type() == at::kFloat || halt.scalar_type() == at::kDouble) &&
                  gate.scalar_type() == halt.scalar_type() && gate.device() == halt.device(),
              "hrm::halting_loss: halt and gate must be float32 on one device, got ", halt.scalar_type(), " on ",
              halt.device(), " and ", gate.scalar_type(), " on ", gate.device());
}

namespace {

using BridgeGateOp = BridgeGateResult(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                      double, double, const OptionalTensor&);
using GateBackwardOp = std::tuple<at::Tensor, at::Tensor>(const OptionalTensor&, const OptionalTensor&,
                                                          const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                          const at::Tensor&, double, double, const OptionalTensor&,
                                                          const OptionalTensor&, const OptionalTensor&);
using HaltOp = at::Tensor(at::TensorList, const at::Tensor&, const at::Tensor&);
using HaltBackwardOp = at::Tensor(const at::Tensor&, const at::Tensor&, at::TensorList, const at::Tensor&,
                                  const OptionalTensor&, const OptionalTensor&);
using HaltingLossOp = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, double);

}  // namespace

BridgeGateResult bridge_gate_forward(const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bias,
                                     const at::Tensor& bridge, const GateRange& range) {
  static const Op<BridgeGateOp> op("hrm::bridge_gate");
  return op(z, weight, bias, bridge, range.scale, range.offset, range.warmup);
}

std::tuple<at::Tensor, at::Tensor> bridge_gate_backward_(const OptionalTensor& grad_gate,
                                                         const OptionalTensor& grad_memory, const at::Tensor& z,
                                                         const at::Tensor& weight, const at::Tensor& bridge,
                                                         const at::Tensor& open, const GateRange& range,
                                                         const OptionalTensor& grad_weight,
                                                         const OptionalTensor& grad_bias) {
  static const Op<GateBackwardOp> op("hrm::bridge_gate_backward_");
  return op(grad_gate, grad_memory, z, weight, bridge, open, range.scale, range.offset, range.warmup, grad_weight,
            grad_bias);
}

at::Tensor halt_probabilities_forward(at::TensorList states, const at::Tensor& weight, const at::Tensor& bias) {
  static const Op<HaltOp> op("hrm::halt_probabilities");
  return op(states, weight, bias);
}

at::Tensor halt_probabilities_backward_(const at::Tensor& grad_p, const at::Tensor& p, at::TensorList states,
                                        const at::Tensor& weight, const OptionalTensor& grad_weight,
                                        const OptionalTensor& grad_bias) {
  static const Op<HaltBackwardOp> op("hrm::halt_probabilities_backward_");
  return op(grad_p, p, states, weight, grad_weight, grad_bias);
}

std::tuple<at::Tensor, at::Tensor> halting_loss_forward(const at::Tensor& halt, const at::Tensor& gate, double target) {
  static const Op<HaltingLossOp> op("hrm::halting_loss");
  return op(halt, gate, target);
}

namespace {

BridgeGateResult bridge_gate_cpu(const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bias,
                                 const at::Tensor& bridge, double scale, double offset, const OptionalTensor& warmup) {
  check_bridge_gate(z, weight, bias, bridge, warmup);
  return reference::bridge_gate(z, weight, bias, bridge, {scale, offset, warmup});
}

std::tuple<at::Tensor, at::Tensor> bridge_gate_backward_cpu(
    const OptionalTensor& grad_gate, const OptionalTensor& grad_memory, const at::Tensor& z, const at::Tensor& weight,
    const at::Tensor& bridge, const at::Tensor& open, double scale, double offset, const OptionalTensor& warmup,
    const OptionalTensor& grad_weight, const OptionalTensor& grad_bias) {
  check_bridge_gate_backward(grad_gate, grad_memory, z, weight, bridge, open, warmup, grad_weight, grad_bias);
  return reference::bridge_gate_backward_(grad_gate, grad_memory, z, weight, bridge, open, {scale, offset, warmup},
                                          grad_weight, grad_bias);
}

at::Tensor halt_probabilities_cpu(at::TensorList states, const at::Tensor& weight, const at::Tensor& bias) {
  check_halt_probabilities(states, weight, bias);
  return reference::halt_probabilities(states, weight, bias);
}

at::Tensor halt_probabilities_backward_cpu(const at::Tensor& grad_p, const at::Tensor& p, at::TensorList states,
                                           const at::Tensor& weight, const OptionalTensor& grad_weight,
                                           const OptionalTensor& grad_bias) {
  check_halt_probabilities_backward(grad_p, p, states, weight, grad_weight, grad_bias);
  return reference::halt_probabilities_backward_(grad_p, p, states, weight, grad_weight, grad_bias);
}

std::tuple<at::Tensor, at::Tensor> halting_loss_cpu(const at::Tensor& halt, const at::Tensor& gate, double target) {
  check_halting_loss(halt, gate);
  return reference::halting_loss(halt, gate, target);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "bridge_gate(Tensor z, Tensor weight, Tensor bias, Tensor bridge, float scale, float offset, Tensor? warmup) -> "
      "(Tensor gate, Tensor memory, Tensor open)");
  m.def(
      "bridge_gate_backward_(Tensor? grad_gate, Tensor? grad_memory, Tensor z, Tensor weight, Tensor bridge, "
      "Tensor open, float scale, float offset, Tensor? warmup, Tensor(a!)? grad_weight, Tensor(b!)? grad_bias) -> "
      "(Tensor grad_z, Tensor grad_bridge)");
  m.def("halt_probabilities(Tensor[] states, Tensor weight, Tensor bias) -> Tensor");
  m.def(
      "halt_probabilities_backward_(Tensor grad_p, Tensor p, Tensor[] states, Tensor weight, Tensor(a!)? grad_weight, "
      "Tensor(b!)? grad_bias) -> Tensor");
  m.def("halting_loss(Tensor halt, Tensor gate, float target) -> (Tensor loss, Tensor slope)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("bridge_gate", &bridge_gate_cpu);
  m.impl("bridge_gate_backward_", &bridge_gate_backward_cpu);
  m.impl("halt_probabilities", &halt_probabilities_cpu);
  m.impl("halt_probabilities_backward_", &halt_probabilities_backward_cpu);
  m.impl("halting_loss", &halting_loss_cpu);
}

}  // namespace hrm::ops

// The readable version, the CPU implementation, and the oracle of the CUDA kernels.
#include <ATen/ATen.h>

#include <vector>

#include "ops/common/accumulate_type.h"
#include "ops/linear/linear_impl.h"
#include "ops/memory/gates_impl.h"

namespace hrm::ops::reference {
namespace {

at::Tensor before_clamp(const at::Tensor& open, const GateRange& range) {
  at::Tensor scaled = open * range.scale;
  if (range.warmup) scaled = scaled * *range.warmup;
  return scaled + range.offset;
}

// What each row's logit got, (N, 1), to the weight (1, D) and the bias that made it from rows (N, D).
void add_gradients_(const at::Tensor& grad_logit, const at::Tensor& rows, const OptionalTensor& grad_weight,
                    const OptionalTensor& grad_bias) {
  const at::NoGradGuard no_grad;
  if (grad_weight) grad_weight->addmm_(grad_logit.t(), rows);
  if (grad_bias) grad_bias->add_(grad_logit.sum(0));
}

at::Tensor first_vectors(at::TensorList states) {
  std::vector<at::Tensor> first;
  for (const at::Tensor& state : states) first.push_back(to_accumulate_type(state.select(1, 0)));
  return at::stack(first);
}

}  // namespace

BridgeGateResult bridge_gate(const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& bridge, const GateRange& range) {
  const at::Tensor open = at::sigmoid(linear_forward(to_accumulate_type(z), weight, bias));
  const at::Tensor gate = before_clamp(open, range).clamp(0, 1);
  return {gate, (gate.unsqueeze(-1) * to_accumulate_type(bridge)).to(bridge.scalar_type()).contiguous(), open};
}

std::tuple<at::Tensor, at::Tensor> bridge_gate_backward_(const OptionalTensor& grad_gate,
                                                         const OptionalTensor& grad_memory, const at::Tensor& z,
                                                         const at::Tensor& weight, const at::Tensor& bridge,
                                                         const at::Tensor& open, const GateRange& range,
                                                         const OptionalTensor& grad_weight,
                                                         const OptionalTensor& grad_bias) {
  const at::Tensor scaled = before_clamp(open, range);
  at::Tensor grad = grad_gate ? *grad_gate : at::zeros_like(open), grad_bridge;
  if (grad_memory) {
    const at::Tensor of_memory = to_accumulate_type(*grad_memory);
    grad = grad + (of_memory * to_accumulate_type(bridge)).sum({1, 2}).unsqueeze(1);
    grad_bridge = (scaled.clamp(0, 1).unsqueeze(-1) * of_memory).to(bridge.scalar_type()).contiguous();
  }
  if (range.warmup) grad = grad * *range.warmup;
  const at::Tensor free = scaled.ge(0).logical_and(scaled.le(1));
  const at::Tensor grad_logit = at::where(free, grad * range.scale * (1 - open) * open, 0);
  add_gradients_(grad_logit, to_accumulate_type(z), grad_weight, grad_bias);
  return {(grad_logit * weight).to(z.scalar_type()), grad_bridge};
}

at::Tensor halt_probabilities(at::TensorList states, const at::Tensor& weight, const at::Tensor& bias) {
  return at::sigmoid(linear_forward(first_vectors(states), weight, bias)).squeeze(-1);
}

at::Tensor halt_probabilities_backward_(const at::Tensor& grad_p, const at::Tensor& p, at::TensorList states,
                                        const at::Tensor& weight, const OptionalTensor& grad_weight,
                                        const OptionalTensor& grad_bias) {
  const at::Tensor grad_logit = (grad_p * (1 - p) * p).unsqueeze(-1), rows = first_vectors(states);
  add_gradients_(grad_logit.reshape({-1, 1}), rows.view({-1, weight.size(1)}), grad_weight, grad_bias);
  const at::Tensor& one = states[0];
  at::Tensor grad =
      at::zeros({static_cast<int64_t>(states.size()), one.size(0), one.size(1), one.size(2)}, one.options());
  grad.select(2, 0).copy_(grad_logit * weight[0]);
  return grad;
}

std::tuple<at::Tensor, at::Tensor> halting_loss(const at::Tensor& halt, const at::Tensor& gate, double target) {
  const at::Tensor excess = halt.sum(0) - target, open = gate.mean();
  return {open * excess.square().mean(), open * excess * (2 / static_cast<double>(halt.size(1)))};
}

}  // namespace hrm::ops::reference

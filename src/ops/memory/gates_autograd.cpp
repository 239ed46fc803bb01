#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>
#include <tuple>

#include "hrm/ops/linear.h"
#include "ops/common/optional_tensor.h"
#include "ops/memory/gates_impl.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// As in ops::linear: the buffers are no saved variables.
void keep_buffers(AutogradContext* ctx, const at::Tensor& weight, const at::Tensor& bias) {
  if (weight.requires_grad()) ctx->saved_data["grad_weight"] = gradient_buffer(weight);
  if (bias.requires_grad()) ctx->saved_data["grad_bias"] = gradient_buffer(bias);
}

OptionalTensor buffer(AutogradContext* ctx, const std::string& name) {
  const auto entry = ctx->saved_data.find(name);
  return entry == ctx->saved_data.end() ? std::nullopt : OptionalTensor(entry->second.toTensor());
}

struct Bridge : torch::autograd::Function<Bridge> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& z, const at::Tensor& weight,
                               const at::Tensor& bias, const at::Tensor& bridge, const OptionalTensor& warmup,
                               double scale, double offset) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [gate, memory, open] = bridge_gate_forward(z, weight, bias, bridge, {scale, offset, warmup});
    ctx->save_for_backward({z, weight, bridge, open, warmup.value_or(at::Tensor())});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["offset"] = offset;
    keep_buffers(ctx, weight, bias);
    ctx->set_materialize_grads(false);
    return {gate, memory};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::bridge_gate has no second derivative");
    variable_list out(7);
    if (!grads[0].defined() && !grads[1].defined()) return out;
    const variable_list saved = ctx->get_saved_variables();
    const GateRange range{ctx->saved_data["scale"].toDouble(), ctx->saved_data["offset"].toDouble(),
                          optional_tensor(saved[4])};
    std::tie(out[0], out[3]) =
        bridge_gate_backward_(optional_tensor(grads[0]), optional_tensor(grads[1]), saved[0], saved[1], saved[2],
                              saved[3], range, buffer(ctx, "grad_weight"), buffer(ctx, "grad_bias"));
    return out;
  }
};

struct Halt : torch::autograd::Function<Halt> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList states, const at::Tensor& weight,
                            const at::Tensor& bias) {
    at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor p = halt_probabilities_forward(states, weight, bias);
    variable_list saved = states.vec();
    saved.push_back(weight);
    saved.push_back(p);
    ctx->save_for_backward(saved);
    keep_buffers(ctx, weight, bias);
    return p;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::halt_probabilities has no second derivative");
    const variable_list saved = ctx->get_saved_variables();
    const size_t cycles = saved.size() - 2;
    const at::Tensor grad =
        halt_probabilities_backward_(grads[0], saved[cycles + 1], at::TensorList(saved.data(), cycles), saved[cycles],
                                     buffer(ctx, "grad_weight"), buffer(ctx, "grad_bias"));
    variable_list out = grad.unbind(0);
    out.resize(cycles + 2);
    return out;
  }
};

struct HaltingLoss : torch::autograd::Function<HaltingLoss> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& halt, const at::Tensor& gate, double target) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [loss, slope] = halting_loss_forward(halt, gate, target);
    ctx->save_for_backward({slope});
    ctx->saved_data["cycles"] = halt.size(0);
    return loss;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::halting_loss has no second derivative");
    const at::Tensor grad = grads[0] * ctx->get_saved_variables()[0];
    return {grad.expand({ctx->saved_data["cycles"].toInt(), -1}), at::Tensor(), at::Tensor()};
  }
};

bool trains(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.requires_grad()) return at::GradMode::is_enabled();
  }
  return false;
}

}  // namespace

BridgeGate bridge_gate(const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& bridge,
                       double scale, double offset, const at::Tensor& warmup) {
  if (trains({z, weight, bias, bridge})) {
    const variable_list out = Bridge::apply(z, weight, bias, bridge, optional_tensor(warmup), scale, offset);
    return {out[0], out[1]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  const auto [gate, memory, open] =
      bridge_gate_forward(z, weight, bias, bridge, {scale, offset, optional_tensor(warmup)});
  return {gate, memory};
}

at::Tensor halt_probabilities(at::TensorList states, const at::Tensor& weight, const at::Tensor& bias) {
  if (trains(states) || trains({weight, bias})) return Halt::apply(states, weight, bias);
  at::AutoDispatchBelowADInplaceOrView below;
  return halt_probabilities_forward(states, weight, bias);
}

at::Tensor halting_loss(const at::Tensor& halt, const at::Tensor& gate, double target) {
  if (trains({halt})) return HaltingLoss::apply(halt, gate, target);
  at::AutoDispatchBelowADInplaceOrView below;
  return std::get<0>(halting_loss_forward(halt, gate, target));
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  for (const char* op :
       {"bridge_gate", "bridge_gate_backward_", "halt_probabilities", "halt_probabilities_backward_", "halting_loss"}) {
    m.impl(op, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace hrm::ops

#include "ops/memory/cuda/gates.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "ops/cuda/launcher.h"
#include "ops/memory/gates_impl.h"

namespace hrm::ops {
namespace {

float* buffer(const OptionalTensor& tensor) {
  return tensor ? tensor->mutable_data_ptr<float>() : nullptr;
}

OptionalTensor contiguous_or_none(const OptionalTensor& tensor) {
  return tensor ? OptionalTensor(tensor->contiguous()) : std::nullopt;
}

BridgeGateResult bridge_gate_cuda(const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bias,
                                  const at::Tensor& bridge, double scale, double offset, const OptionalTensor& warmup) {
  check_bridge_gate(z, weight, bias, bridge, warmup);
  const c10::cuda::CUDAGuard guard(z.device());
  if (!cuda::use_kernel(z)) return reference::bridge_gate(z, weight, bias, bridge, {scale, offset, warmup});
  const at::Tensor rows = z.contiguous(), w = weight.contiguous(), vectors = bridge.contiguous();
  at::Tensor gate = at::empty({z.size(0), 1}, w.options()), open = at::empty({z.size(0), 1}, w.options()),
             memory = at::empty(bridge.sizes(), vectors.options());
  if (z.size(0) == 0) return {gate, memory, open};
  cuda::BridgeGateForward params{};
  params.z = rows.const_data_ptr();
  params.weight = w.const_data_ptr<float>();
  params.bias = bias.const_data_ptr<float>();
  params.warmup = cuda::optional_floats(warmup);
  params.bridge = vectors.const_data_ptr();
  params.gate = gate.mutable_data_ptr<float>();
  params.open = open.mutable_data_ptr<float>();
  params.memory = memory.mutable_data_ptr();
  params.rows = z.size(0);
  params.width = z.size(1);
  params.inner = bridge.size(1) * bridge.size(2);
  params.scale = static_cast<float>(scale);
  params.offset = static_cast<float>(offset);
  params.element = cuda::element_of(z);
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return {gate, memory, open};
}

std::tuple<at::Tensor, at::Tensor> bridge_gate_backward_cuda(
    const OptionalTensor& grad_gate, const OptionalTensor& grad_memory, const at::Tensor& z, const at::Tensor& weight,
    const at::Tensor& bridge, const at::Tensor& open, double scale, double offset, const OptionalTensor& warmup,
    const OptionalTensor& grad_weight, const OptionalTensor& grad_bias) {
  check_bridge_gate_backward(grad_gate, grad_memory, z, weight, bridge, open, warmup, grad_weight, grad_bias);
  const c10::cuda::CUDAGuard guard(z.device());
  if (!cuda::use_kernel(z)) {
    return reference::bridge_gate_backward_(grad_gate, grad_memory, z, weight, bridge, open, {scale, offset, warmup},
                                            grad_weight, grad_bias);
  }
  const OptionalTensor of_gate = contiguous_or_none(grad_gate), of_memory = contiguous_or_none(grad_memory);
  const at::Tensor rows = z.contiguous(), w = weight.contiguous(), vectors = bridge.contiguous(),
                   opened = open.contiguous();
  at::Tensor grad_z = at::empty(z.sizes(), rows.options()), grad_bridge;
  if (grad_memory) grad_bridge = at::empty(bridge.sizes(), vectors.options());
  if (z.size(0) == 0) return {grad_z, grad_bridge};
  const at::Tensor grad_logit = at::empty({z.size(0)}, w.options());
  cuda::BridgeGateBackward params{};
  params.grad_gate = cuda::optional_floats(of_gate);
  params.grad_memory = of_memory ? of_memory->const_data_ptr() : nullptr;
  params.z = rows.const_data_ptr();
  params.weight = w.const_data_ptr<float>();
  params.warmup = cuda::optional_floats(warmup);
  params.bridge = vectors.const_data_ptr();
  params.open = opened.const_data_ptr<float>();
  params.grad_z = grad_z.mutable_data_ptr();
  params.grad_bridge = grad_memory ? grad_bridge.mutable_data_ptr() : nullptr;
  params.grad_logit = grad_logit.mutable_data_ptr<float>();
  params.grad_weight = buffer(grad_weight);
  params.grad_bias = buffer(grad_bias);
  params.rows = z.size(0);
  params.width = z.size(1);
  params.inner = bridge.size(1) * bridge.size(2);
  params.scale = static_cast<float>(scale);
  params.offset = static_cast<float>(offset);
  params.element = cuda::element_of(z);
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return {grad_z, grad_bridge};
}

std::vector<at::Tensor> contiguous_or_none(at::TensorList states) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& state : states) out.push_back(state.contiguous());
  return out;
}

// Calls `run` with the first of at most kHaltCycles cycles and how many they are.
template <class Run>
void in_parts(int64_t cycles, const Run& run) {
  for (int64_t first = 0; first < cycles; first += cuda::kHaltCycles) {
    run(first, static_cast<int>(std::min<int64_t>(cycles - first, cuda::kHaltCycles)));
  }
}

at::Tensor halt_probabilities_cuda(at::TensorList states, const at::Tensor& weight, const at::Tensor& bias) {
  check_halt_probabilities(states, weight, bias);
  const c10::cuda::CUDAGuard guard(weight.device());
  if (!cuda::use_kernel(states[0])) return reference::halt_probabilities(states, weight, bias);
  const std::vector<at::Tensor> from = contiguous_or_none(states);
  const at::Tensor w = weight.contiguous();
  const auto cycles = static_cast<int64_t>(states.size());
  at::Tensor p = at::empty({cycles, from[0].size(0)}, w.options());
  if (p.numel() == 0) return p;
  cuda::HaltForward params{};
  params.weight = w.const_data_ptr<float>();
  params.bias = bias.const_data_ptr<float>();
  params.rows = from[0].size(0);
  params.vectors = from[0].size(1);
  params.width = from[0].size(2);
  params.element = cuda::element_of(from[0]);
  in_parts(cycles, [&](int64_t first, int count) {
    for (int i = 0; i < count; ++i) params.states[i] = from[static_cast<size_t>(first + i)].const_data_ptr();
    params.p = p.mutable_data_ptr<float>() + first * params.rows;
    params.cycles = count;
    C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  });
  return p;
}

at::Tensor halt_probabilities_backward_cuda(const at::Tensor& grad_p, const at::Tensor& p, at::TensorList states,
                                            const at::Tensor& weight, const OptionalTensor& grad_weight,
                                            const OptionalTensor& grad_bias) {
  check_halt_probabilities_backward(grad_p, p, states, weight, grad_weight, grad_bias);
  const c10::cuda::CUDAGuard guard(weight.device());
  if (!cuda::use_kernel(states[0])) {
    return reference::halt_probabilities_backward_(grad_p, p, states, weight, grad_weight, grad_bias);
  }
  const std::vector<at::Tensor> from = contiguous_or_none(states);
  const at::Tensor w = weight.contiguous(), opened = p.contiguous(), grad_logit = at::empty(p.sizes(), w.options());
  const at::Tensor& one = from[0];
  at::Tensor grad = at::empty({p.size(0), one.size(0), one.size(1), one.size(2)}, one.options());
  if (p.numel() == 0) return grad;
  cuda::HaltBackward params{};
  params.cycle_stride = grad_p.stride(0);
  params.row_stride = grad_p.stride(1);
  params.weight = w.const_data_ptr<float>();
  params.grad_weight = buffer(grad_weight);
  params.grad_bias = buffer(grad_bias);
  params.rows = one.size(0);
  params.vectors = one.size(1);
  params.width = one.size(2);
  params.element = cuda::element_of(one);
  in_parts(p.size(0), [&](int64_t first, int count) {
    for (int i = 0; i < count; ++i) params.states[i] = from[static_cast<size_t>(first + i)].const_data_ptr();
    const int64_t done = first * params.rows;
    params.grad_p = grad_p.const_data_ptr<float>() + first * params.cycle_stride;
    params.p = opened.const_data_ptr<float>() + done;
    params.grad_states = grad.select(0, first).mutable_data_ptr();
    params.grad_logit = grad_logit.mutable_data_ptr<float>() + done;
    params.cycles = count;
    C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  });
  return grad;
}

std::tuple<at::Tensor, at::Tensor> halting_loss_cuda(const at::Tensor& halt, const at::Tensor& gate, double target) {
  check_halting_loss(halt, gate);
  const c10::cuda::CUDAGuard guard(halt.device());
  if (!cuda::use_kernel(halt)) return reference::halting_loss(halt, gate, target);
  const at::Tensor p = halt.contiguous(), open = gate.contiguous();
  at::Tensor loss = at::empty({}, p.options()), slope = at::empty({halt.size(1)}, p.options());
  cuda::HaltingLossForward params{};
  params.halt = p.const_data_ptr<float>();
  params.gate = open.const_data_ptr<float>();
  params.loss = loss.mutable_data_ptr<float>();
  params.slope = slope.mutable_data_ptr<float>();
  params.cycles = halt.size(0);
  params.rows = halt.size(1);
  params.target = static_cast<float>(target);
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return {loss, slope};
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("bridge_gate", &bridge_gate_cuda);
  m.impl("bridge_gate_backward_", &bridge_gate_backward_cuda);
  m.impl("halt_probabilities", &halt_probabilities_cuda);
  m.impl("halt_probabilities_backward_", &halt_probabilities_backward_cuda);
  m.impl("halting_loss", &halting_loss_cuda);
}

}  // namespace hrm::ops

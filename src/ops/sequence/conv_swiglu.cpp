#include "hrm/ops/conv_swiglu.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "hrm/ops/backend.h"
#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"
#include "ops/sequence/conv_swiglu_impl.h"

namespace hrm::ops {

void check_conv_swiglu(const at::Tensor& gate_up, const at::Tensor& taps, const at::Tensor& bias) {
  TORCH_CHECK(gate_up.dim() == 3 && gate_up.size(2) % 2 == 0 && at::isFloatingType(gate_up.scalar_type()),
              "hrm::conv_swiglu: gate_up must be floating-point and have the shape (B, L, 2F), got ", gate_up.sizes(),
              " ", gate_up.scalar_type());
  const int64_t width = gate_up.size(2) / 2;
  TORCH_CHECK(taps.sizes() == (at::IntArrayRef{width, 2}) && bias.sizes() == at::IntArrayRef{width},
              "hrm::conv_swiglu: taps must have the shape (F, 2) and bias (F) where gate_up has (B, L, 2F), got ",
              taps.sizes(), " and ", bias.sizes(), " for ", gate_up.sizes());
  TORCH_CHECK(taps.scalar_type() == accumulate_type(gate_up) && bias.scalar_type() == accumulate_type(gate_up),
              "hrm::conv_swiglu: taps and bias must be ", accumulate_type(gate_up), " for ", gate_up.scalar_type(),
              " gate_up, got ", taps.scalar_type(), " and ", bias.scalar_type(), " (shape ", gate_up.sizes(), ")");
  TORCH_CHECK(taps.device() == gate_up.device() && bias.device() == gate_up.device(),
              "hrm::conv_swiglu: gate_up is on ", gate_up.device(), ", taps on ", taps.device(), " and bias on ",
              bias.device(), " (shape ", gate_up.sizes(), ")");
}

void check_conv_swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& taps,
                                const at::Tensor& bias) {
  check_conv_swiglu(gate_up, taps, bias);
  TORCH_CHECK(grad_act.sizes() == (at::IntArrayRef{gate_up.size(0), gate_up.size(1), gate_up.size(2) / 2}) &&
                  grad_act.scalar_type() == gate_up.scalar_type() && grad_act.device() == gate_up.device(),
              "hrm::conv_swiglu_backward: grad_act must be (B, L, F) where gate_up is (B, L, 2F), with its dtype and "
              "device, got ",
              grad_act.sizes(), " ", grad_act.scalar_type(), " on ", grad_act.device(), " for ", gate_up.sizes(), " ",
              gate_up.scalar_type(), " on ", gate_up.device());
}

at::Tensor conv_swiglu(const at::Tensor& gate_up, const at::Tensor& taps, const at::Tensor& bias) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)> op("hrm::conv_swiglu");
  return op(gate_up, taps, bias);
}

ConvSwigluGrads conv_swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& taps,
                                     const at::Tensor& bias, bool needs_weight) {
  static const Op<ConvSwigluGrads(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool)> op(
      "hrm::conv_swiglu_backward");
  return op(grad_act, gate_up, taps, bias, needs_weight);
}

namespace {

bool conv_loops_fit(const at::Tensor& gate_up) {
  return backend() == Backend::fused && gate_up.scalar_type() == at::kFloat;
}

at::Tensor conv_swiglu_cpu(const at::Tensor& gate_up, const at::Tensor& taps, const at::Tensor& bias) {
  check_conv_swiglu(gate_up, taps, bias);
  return conv_loops_fit(gate_up) ? cpu::conv_swiglu(gate_up, taps, bias) : reference::conv_swiglu(gate_up, taps, bias);
}

ConvSwigluGrads conv_swiglu_backward_cpu(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& taps,
                                         const at::Tensor& bias, bool needs_weight) {
  check_conv_swiglu_backward(grad_act, gate_up, taps, bias);
  return conv_loops_fit(gate_up) ? cpu::conv_swiglu_backward(grad_act, gate_up, taps, bias, needs_weight)
                                 : reference::conv_swiglu_backward(grad_act, gate_up, taps, bias, needs_weight);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("conv_swiglu(Tensor gate_up, Tensor taps, Tensor bias) -> Tensor");
  m.def(
      "conv_swiglu_backward(Tensor grad_act, Tensor gate_up, Tensor taps, Tensor bias, bool needs_weight=True) -> "
      "(Tensor grad_gate_up, Tensor grad_taps, Tensor grad_bias)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("conv_swiglu", &conv_swiglu_cpu);
  m.impl("conv_swiglu_backward", &conv_swiglu_backward_cpu);
}

}  // namespace hrm::ops

// The readable version, and the oracle of the kernels.
#include <ATen/ATen.h>

#include "ops/common/accumulate_type.h"
#include "ops/sequence/conv_swiglu_impl.h"

namespace hrm::ops::reference {
namespace {

// x[t - 1] and x[t + 1] at t; zeros beyond the ends. x: (B, L, F).
at::Tensor earlier(const at::Tensor& x) {
  return at::constant_pad_nd(x, {0, 0, 1, 0}).narrow(1, 0, x.size(1));
}
at::Tensor later(const at::Tensor& x) {
  return at::constant_pad_nd(x, {0, 0, 0, 1}).narrow(1, 1, x.size(1));
}

}  // namespace

at::Tensor conv_swiglu(const at::Tensor& gate_up, const at::Tensor& taps, const at::Tensor& bias) {
  const auto halves = to_accumulate_type(gate_up).chunk(2, -1);
  const at::Tensor u = at::silu(halves[0]) * halves[1];
  const at::Tensor c = earlier(u) * taps.select(1, 0) + u * taps.select(1, 1) + bias;
  return at::silu(c).to(gate_up.scalar_type()).contiguous();
}

ConvSwigluGrads conv_swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& taps,
                                     const at::Tensor& bias, bool needs_weight) {
  const auto halves = to_accumulate_type(gate_up).chunk(2, -1);
  const at::Tensor &gate = halves[0], &up = halves[1];
  const at::Tensor w0 = taps.select(1, 0), w1 = taps.select(1, 1);
  const at::Tensor activated = at::silu(gate), u = activated * up, before = earlier(u);
  const at::Tensor grad_c = at::silu_backward(to_accumulate_type(grad_act), before * w0 + u * w1 + bias);
  const at::Tensor grad_u = later(grad_c) * w0 + grad_c * w1;
  const at::Tensor grad = at::cat({at::silu_backward(grad_u * up, gate), grad_u * activated}, -1);
  const at::Tensor grad_gate_up = grad.to(gate_up.scalar_type());
  if (!needs_weight) return {grad_gate_up, at::Tensor(), at::Tensor()};
  const auto sum = [](const at::Tensor& x) { return x.sum(at::IntArrayRef{0, 1}); };
  return {grad_gate_up, at::stack({sum(grad_c * before), sum(grad_c * u)}, 1), sum(grad_c)};
}

}  // namespace hrm::ops::reference

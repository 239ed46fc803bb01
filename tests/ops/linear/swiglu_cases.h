#pragma once
// Checks of SwiGLU that hold on every device.

#include "hrm/ops/swiglu.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

// The formula in plain ATen operations, differentiated by ATen itself.
inline at::Tensor plain_swiglu(const at::Tensor& gate_up) {
  const auto halves = gate_up.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

struct SwigluResult {
  at::Tensor act, grad;
};

template <class Gate>
SwigluResult run_swiglu(const Gate& gate, const at::Tensor& gate_up, const at::Tensor& grad_act) {
  const at::Tensor leaf = gate_up.detach().requires_grad_();
  const at::Tensor act = gate(leaf);
  return {act.detach(), torch::autograd::grad({act}, {leaf}, {grad_act})[0]};
}

inline at::Tensor grad_for(const at::Tensor& gate_up, uint64_t seed = 3) {
  std::vector<int64_t> sizes = gate_up.sizes().vec();
  sizes.back() /= 2;
  return normal(sizes, seed, gate_up.scalar_type(), gate_up.device());
}

// Value and gradient against float64, with at most twice the error of plain ATen.
inline void expect_good_swiglu(const at::Tensor& gate_up, const std::string& what) {
  const at::Tensor grad_act = grad_for(gate_up);
  const SwigluResult ours = run_swiglu(swiglu, gate_up, grad_act);
  const SwigluResult plain = run_swiglu(plain_swiglu, gate_up, grad_act);
  const SwigluResult exact = run_swiglu(plain_swiglu, gate_up.to(at::kDouble), grad_act.to(at::kDouble));
  expect_as_good(ours.act, plain.act, exact.act, what + ", value");
  expect_as_good(ours.grad, plain.grad, exact.grad, what + ", gradient");

  const at::NoGradGuard no_grad;
  expect_same_bits(swiglu(gate_up), ours.act, what + ", without gradient");
  expect_same_bits(swiglu_backward(grad_act, gate_up), ours.grad, what + ", gradient alone");
}

// Widths on both sides of the choice between 16-byte words and elements.
inline std::vector<int64_t> swiglu_widths() {
  return {1, 3, 4, 8, 97, 256, 300, 1536};
}

}  // namespace hrm::ops::testing

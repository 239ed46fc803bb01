#pragma once
// Checks of the MLP over positions that hold on every device.

#include <tuple>

#include "hrm/ops/mlp_mix.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

constexpr double kMixEps = 1e-5;

struct MixSizes {
  int64_t batch, length, width, inner;
};

struct MixCase {
  at::Tensor h, gate_up, down, grad_y;
};

inline MixCase make_mix(const MixSizes& s, at::ScalarType dtype, at::Device device) {
  MixCase c;
  c.h = normal({s.batch, s.length, s.width}, 1, dtype, device);
  c.gate_up = (normal({2 * s.inner, s.length}, 2, at::kFloat, device) * (1.5 / std::sqrt(s.length))).to(dtype);
  c.down = (normal({s.length, s.inner}, 3, at::kFloat, device) * (1.5 / std::sqrt(s.inner))).to(dtype);
  c.grad_y = normal({s.batch, s.length, s.width}, 4, dtype, device);
  return c;
}

struct MixResult {
  at::Tensor y, grad_h, grad_gate_up, grad_down;
};

// As the layer is written down: transposed, two linear layers, the norm of the last dimension, transposed back.
inline at::Tensor plain_mix(const at::Tensor& h, const at::Tensor& gate_up, const at::Tensor& down, double eps) {
  const at::Tensor h_t = h.transpose(1, 2).contiguous();
  const auto halves = at::linear(h_t, gate_up).chunk(2, -1);
  const at::Tensor v = h_t + at::linear(at::silu(halves[0]) * halves[1], down);
  const at::Tensor wide = v.scalar_type() == at::kDouble ? v : v.to(at::kFloat);
  return (wide * at::rsqrt(wide.square().mean(-1, true) + eps)).to(h.scalar_type()).transpose(1, 2).contiguous();
}

inline MixResult run_plain_mix(const MixCase& c, at::ScalarType dtype, double eps = kMixEps) {
  const at::Tensor h = c.h.to(dtype).detach().requires_grad_();
  const at::Tensor gate_up = c.gate_up.to(dtype).detach().requires_grad_();
  const at::Tensor down = c.down.to(dtype).detach().requires_grad_();
  const at::Tensor y = plain_mix(h, gate_up, down, eps);
  const auto grads = torch::autograd::grad({y}, {h, gate_up, down}, {c.grad_y.to(dtype)});
  return {y.detach(), grads[0], grads[1], grads[2]};
}

// Ours, through autograd. The gradient buffers start at 0.5, which is taken off again: the op must add.
inline MixResult run_mix(const MixCase& c, double eps = kMixEps) {
  const at::ScalarType wide = c.h.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto master_of = [&](const at::Tensor& weight) {
    const at::Tensor master = weight.to(wide).detach().clone(at::MemoryFormat::Contiguous).requires_grad_();
    master.mutable_grad() = at::full_like(master, 0.5).detach();
    return master;
  };
  const at::Tensor h = c.h.detach().requires_grad_();
  const at::Tensor gate_up = master_of(c.gate_up), down = master_of(c.down);
  const at::Tensor y = mlp_mix(h, c.gate_up, c.down, gate_up, down, eps);
  const at::Tensor grad_h = torch::autograd::grad({y}, {h}, {c.grad_y})[0];
  return {y.detach(), grad_h, gate_up.grad() - 0.5, down.grad() - 0.5};
}

// The largest sum of magnitudes behind an element of y.
inline double mix_terms(const MixCase& c) {
  if (c.h.numel() == 0) return 0;
  const at::Tensor h_t = c.h.to(at::kDouble).transpose(1, 2);
  const at::Tensor down = c.down.to(at::kDouble);
  const auto halves = at::linear(h_t, c.gate_up.to(at::kDouble)).chunk(2, -1);
  const at::Tensor act = at::silu(halves[0]) * halves[1];
  const at::Tensor rstd = at::rsqrt((h_t + at::linear(act, down)).square().mean(-1, true) + kMixEps);
  return ((h_t.abs() + at::linear(act.abs(), down.abs())) * rstd).max().item<double>();
}

// Value and gradients against float64, with at most twice the error of plain ATen.
inline void expect_good_mix(const MixCase& c, const std::string& what) {
  const MixResult ours = run_mix(c);
  const MixResult plain = run_plain_mix(c, c.h.scalar_type());
  const MixResult exact = run_plain_mix(c, at::kDouble);
  expect_as_good(ours.y, plain.y, exact.y, what + ", y",
                 2 * mix_terms(c));  // two products, one after the other
  // What stands behind an element of a gradient: sums over L and F (h), and over the batch and D (weights).
  const double columns = static_cast<double>(c.h.size(0) * c.h.size(2));
  expect_as_good(ours.grad_h, plain.grad_h, exact.grad_h, what + ", gradient of h",
                 exact.grad_h.numel() > 0 ? 16 * exact.grad_h.abs().max().item<double>() : 0);
  const auto check_weight = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& e, const char* name) {
    expect_as_good(a, b.to(a.scalar_type()), e, what + name,
                   e.abs().max().item<double>() * std::sqrt(std::max(columns, 1.0)) + 0.5);
  };
  check_weight(ours.grad_gate_up, plain.grad_gate_up, exact.grad_gate_up, ", gradient of gate_up");
  check_weight(ours.grad_down, plain.grad_down, exact.grad_down, ", gradient of down");

  const at::NoGradGuard no_grad;
  expect_same_bits(mlp_mix(c.h, c.gate_up, c.down, kMixEps), ours.y, what + ", without gradient");
  expect_same_bits(std::get<0>(mlp_mix_forward(c.h, c.gate_up, c.down, kMixEps)), ours.y, what + ", forward");
}

inline std::string name_of(const MixSizes& s, at::ScalarType dtype) {
  return cat(dtype, " B ", s.batch, " L ", s.length, " D ", s.width, " F ", s.inner);
}

}  // namespace hrm::ops::testing

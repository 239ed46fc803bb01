#pragma once
// Checks of the gate, of the probabilities of halting and of their loss that hold on every device.

#include <optional>
#include <vector>

#include "hrm/ops/gates.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

inline at::Tensor in_type(const at::Tensor& t, at::ScalarType type) {
  return t.defined() ? t.detach().to(type) : t;
}

inline at::Tensor as_leaf(const at::Tensor& t) {
  return t.detach().requires_grad_();
}

struct GateCase {
  at::Tensor z, weight, bias, bridge, warmup;  // warmup undefined: none
  double scale = 1, offset = 0;
  at::Tensor grad_gate, grad_memory;  // one of them may be undefined
};

inline GateCase make_gate(int64_t rows, int64_t vectors, int64_t width, at::ScalarType dtype,
                          at::Device device = at::kCPU) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  GateCase c;
  c.z = normal({rows, width}, 1, dtype, device);
  c.weight = normal({1, width}, 2, wide, device) * (2 / std::sqrt(static_cast<double>(width)));
  c.bias = normal({1}, 3, wide, device);
  c.bridge = normal({rows, vectors, width}, 4, dtype, device);
  c.grad_gate = normal({rows, 1}, 5, wide, device);
  c.grad_memory = normal({rows, vectors, width}, 6, dtype, device);
  return c;
}

inline GateCase in_type(const GateCase& c, at::ScalarType type) {
  return {in_type(c.z, type),
          in_type(c.weight, type),
          in_type(c.bias, type),
          in_type(c.bridge, type),
          in_type(c.warmup, type),
          c.scale,
          c.offset,
          in_type(c.grad_gate, type),
          in_type(c.grad_memory, type)};
}

// The formula in plain ATen operations, differentiated by ATen itself.
inline BridgeGate plain_gate(const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& bridge, double scale, double offset, const at::Tensor& warmup) {
  at::Tensor open = at::sigmoid(at::linear(z, weight, bias)) * scale;
  if (warmup.defined()) open = open * warmup;
  const at::Tensor gate = (open + offset).clamp(0, 1);
  return {gate, gate.unsqueeze(-1) * bridge};
}

struct GateOutcome {
  at::Tensor gate, memory, grad_z, grad_bridge, grad_weight, grad_bias;

  std::vector<at::Tensor> all() const { return {gate, memory, grad_z, grad_bridge, grad_weight, grad_bias}; }
};

template <class Gate>
GateOutcome run_gate(const Gate& of, const GateCase& c) {
  const at::Tensor z = as_leaf(c.z), weight = as_leaf(c.weight), bias = as_leaf(c.bias), bridge = as_leaf(c.bridge);
  const BridgeGate out = of(z, weight, bias, bridge, c.scale, c.offset, c.warmup);
  std::vector<at::Tensor> outputs, grads;
  for (const auto& [output, grad] : {std::pair{out.gate, c.grad_gate}, std::pair{out.memory, c.grad_memory}}) {
    if (!grad.defined()) continue;
    outputs.push_back(output);
    grads.push_back(grad);
  }
  torch::autograd::backward(outputs, grads);
  const at::Tensor of_bridge = bridge.grad().defined() ? bridge.grad() : at::zeros_like(bridge);
  return {out.gate.detach(), out.memory.detach(), z.grad(), of_bridge.detach(), weight.grad(), bias.grad()};
}

// Against float64, with at most twice the error of plain ATen in float32, rounded where ours is.
inline void expect_good_gate(const GateCase& c, const std::string& what) {
  const GateOutcome ours = run_gate(bridge_gate, c), exact = run_gate(plain_gate, in_type(c, at::kDouble));
  GateOutcome plain = run_gate(plain_gate, in_type(c, at::kFloat));
  const at::ScalarType dtype = c.z.scalar_type();
  for (at::Tensor* tensor : {&plain.memory, &plain.grad_z, &plain.grad_bridge}) *tensor = tensor->to(dtype);

  // Sums of magnitudes: of a logit, of a row's gradient of it, and what these make of the weight's gradient.
  const GateCase wide = in_type(c, at::kDouble);
  const auto largest = [](const at::Tensor& t) { return t.numel() == 0 ? 0 : t.abs().max().item<double>(); };
  const at::Tensor logit = wide.z.abs().mm(wide.weight.t().abs()) + wide.bias.abs();
  at::Tensor row = at::zeros_like(logit);
  if (c.grad_gate.defined()) row = row + wide.grad_gate.abs();
  if (c.grad_memory.defined()) row = row + (wide.grad_memory * wide.bridge).abs().sum({1, 2}).unsqueeze(1);
  row = row * (1 + logit) * c.scale;
  const double gate = c.scale * largest(logit);
  expect_as_good(ours.gate, plain.gate, exact.gate, what + ", gate", gate);
  expect_as_good(ours.memory, plain.memory, exact.memory, what + ", memory", gate * largest(wide.bridge));
  expect_as_good(ours.grad_z, plain.grad_z, exact.grad_z, what + ", gradient of z",
                 largest(row) * largest(wide.weight));
  expect_as_good(ours.grad_bridge, plain.grad_bridge, exact.grad_bridge, what + ", gradient of the bridge",
                 c.grad_memory.defined() ? gate * largest(wide.grad_memory) : 0);
  expect_as_good(ours.grad_weight, plain.grad_weight, exact.grad_weight, what + ", gradient of the weight",
                 largest(row.t().mm(wide.z.abs())));
  expect_as_good(ours.grad_bias, plain.grad_bias, exact.grad_bias, what + ", gradient of the bias",
                 row.sum().item<double>());

  const at::NoGradGuard no_grad;
  const BridgeGate without = bridge_gate(c.z, c.weight, c.bias, c.bridge, c.scale, c.offset, c.warmup);
  expect_same_bits(without.gate, ours.gate, what + ", without gradient");
  expect_same_bits(without.memory, ours.memory, what + ", memory without gradient");
}

inline void expect_good_gates(at::ScalarType dtype, at::Device device) {
  const std::vector<std::vector<int64_t>> sizes{{1, 1, 1},   {3, 1, 7},   {5, 8, 64},    {33, 3, 97},
                                                {40, 1, 31}, {64, 8, 32}, {130, 2, 512}, {2, 2, 5001}};
  for (const std::vector<int64_t>& s : sizes) {
    GateCase c = make_gate(s[0], s[1], s[2], dtype, device);
    const std::string what = cat(dtype, " ", at::IntArrayRef(s));
    expect_good_gate(c, what);
    c.scale = 1.5;  // some gates are held at 0, some at 1
    c.offset = -0.25;
    expect_good_gate(c, what + ", clamped");
    c.warmup = scalar(0.5, device);
    expect_good_gate(c, what + ", half warm");
    c.grad_gate = at::Tensor();
    expect_good_gate(c, what + ", of memory alone");
    c.grad_gate = normal({s[0], 1}, 5, at::kFloat, device);
    c.grad_memory = at::Tensor();
    expect_good_gate(c, what + ", of the gate alone");
  }
  GateCase strided = make_gate(6, 4, 24, dtype, device);
  strided.z = normal({24, 6}, 1, dtype, device).t();
  strided.bridge = normal({4, 6, 24}, 4, dtype, device).transpose(0, 1);
  strided.grad_memory = normal({6, 1, 24}, 6, dtype, device).expand({6, 4, 24});
  expect_good_gate(strided, cat(dtype, " strided"));
  expect_good_gate(make_gate(0, 2, 8, dtype, device), cat(dtype, " empty"));
}

// A warm-up of 0 leaves the offset alone, and numbers that are none stay.
inline void expect_gate_edges(at::Device device) {
  GateCase c = make_gate(4, 2, 8, at::kFloat, device);
  c.offset = 0.25;
  c.warmup = scalar(0, device);
  GateOutcome out = run_gate(bridge_gate, c);
  EXPECT_TRUE(at::equal(out.gate, at::full_like(out.gate, 0.25)));
  EXPECT_EQ(out.grad_z.abs().max().item<double>(), 0);
  c.z[1][3] = std::numeric_limits<float>::quiet_NaN();
  c.warmup = at::Tensor();
  out = run_gate(bridge_gate, c);
  EXPECT_TRUE(at::equal(at::isnan(out.gate).view({-1}).cpu(), at::tensor({0, 1, 0, 0}).to(at::kBool)));
  EXPECT_TRUE(at::isnan(out.memory[1]).all().item<bool>());
}

struct HaltCase {
  std::vector<at::Tensor> states;
  at::Tensor weight, bias, grad_p;
};

inline HaltCase make_halt(int64_t cycles, int64_t rows, int64_t vectors, int64_t width, at::ScalarType dtype,
                          at::Device device = at::kCPU) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  HaltCase c;
  for (int64_t cycle = 0; cycle < cycles; ++cycle) {
    c.states.push_back(normal({rows, vectors, width}, 10 + static_cast<uint64_t>(cycle), dtype, device));
  }
  c.weight = normal({1, width}, 2, wide, device) * (2 / std::sqrt(static_cast<double>(width)));
  c.bias = normal({1}, 3, wide, device);
  c.grad_p = normal({cycles, rows}, 4, wide, device);
  return c;
}

inline HaltCase in_type(const HaltCase& c, at::ScalarType type) {
  HaltCase out{{}, in_type(c.weight, type), in_type(c.bias, type), in_type(c.grad_p, type)};
  for (const at::Tensor& state : c.states) out.states.push_back(in_type(state, type));
  return out;
}

inline at::Tensor plain_halt(at::TensorList states, const at::Tensor& weight, const at::Tensor& bias) {
  std::vector<at::Tensor> p;
  for (const at::Tensor& state : states) {
    p.push_back(at::sigmoid(at::linear(state.select(1, 0), weight, bias)).squeeze(-1));
  }
  return at::stack(p);
}

struct HaltOutcome {
  at::Tensor p, grad_states, grad_weight, grad_bias;

  std::vector<at::Tensor> all() const { return {p, grad_states, grad_weight, grad_bias}; }
};

template <class Halt>
HaltOutcome run_halt(const Halt& of, const HaltCase& c) {
  std::vector<at::Tensor> states, grads;
  for (const at::Tensor& state : c.states) states.push_back(as_leaf(state));
  const at::Tensor weight = as_leaf(c.weight), bias = as_leaf(c.bias), p = of(states, weight, bias);
  torch::autograd::backward({p}, {c.grad_p});
  for (const at::Tensor& state : states) grads.push_back(state.grad());
  return {p.detach(), at::stack(grads), weight.grad(), bias.grad()};
}

inline void expect_good_halt(const HaltCase& c, const std::string& what) {
  const HaltOutcome ours = run_halt(halt_probabilities, c), exact = run_halt(plain_halt, in_type(c, at::kDouble));
  HaltOutcome plain = run_halt(plain_halt, in_type(c, at::kFloat));
  plain.grad_states = plain.grad_states.to(c.states[0].scalar_type());
  const HaltCase wide = in_type(c, at::kDouble);
  const at::Tensor first = at::stack(wide.states).select(2, 0).abs(),  // (C, B, D)
      logit = first.matmul(wide.weight[0].abs()) + wide.bias.abs(), row = wide.grad_p.abs() * (1 + logit);
  const auto largest = [](const at::Tensor& t) { return t.numel() == 0 ? 0 : t.abs().max().item<double>(); };
  expect_as_good(ours.p, plain.p, exact.p, what + ", p", largest(logit));
  expect_as_good(ours.grad_states, plain.grad_states, exact.grad_states, what + ", gradient of the states",
                 largest(row) * largest(wide.weight));
  expect_as_good(ours.grad_weight, plain.grad_weight, exact.grad_weight, what + ", gradient of the weight",
                 largest((row.unsqueeze(-1) * first).sum(0).sum(0)));
  expect_as_good(ours.grad_bias, plain.grad_bias, exact.grad_bias, what + ", gradient of the bias",
                 row.sum().item<double>());
  const at::NoGradGuard no_grad;
  expect_same_bits(halt_probabilities(c.states, c.weight, c.bias), ours.p, what + ", without gradient");
}

inline void expect_good_halts(at::ScalarType dtype, at::Device device) {
  const std::vector<std::vector<int64_t>> sizes{{1, 1, 1, 1},    {2, 3, 1, 7},  {4, 33, 8, 97}, {3, 9, 2, 31},
                                                {4, 20, 8, 512}, {35, 2, 3, 16}};  // more than a launch takes
  for (const std::vector<int64_t>& s : sizes) {
    expect_good_halt(make_halt(s[0], s[1], s[2], s[3], dtype, device), cat(dtype, " ", at::IntArrayRef(s)));
  }
  HaltCase strided = make_halt(2, 6, 4, 24, dtype, device);
  for (at::Tensor& state : strided.states) state = normal({4, 24, 6}, 1, dtype, device).permute({2, 0, 1});
  strided.grad_p = strided.grad_p.narrow(0, 0, 1).expand({2, 6});
  expect_good_halt(strided, cat(dtype, " strided"));
  expect_good_halt(make_halt(2, 0, 4, 8, dtype, device), cat(dtype, " empty"));
}

inline at::Tensor plain_halting_loss(const at::Tensor& halt, const at::Tensor& gate, double target) {
  return gate.detach().mean() * (halt.sum(0) - target).square().mean();
}

template <class Loss>
std::vector<at::Tensor> run_halting_loss(const Loss& of, const at::Tensor& halt, const at::Tensor& gate) {
  const at::Tensor leaf = as_leaf(halt), open = as_leaf(gate), loss = of(leaf, open, /*target=*/1.25);
  torch::autograd::backward({loss * 3}, {});
  EXPECT_FALSE(open.grad().defined());
  return {loss.detach(), leaf.grad()};
}

inline void expect_good_halting_losses(at::Device device) {
  for (const int64_t cycles : {1, 4, 9}) {
    for (const int64_t rows : {1, 7, 64, 1000}) {
      const at::Tensor halt = at::sigmoid(normal({cycles, rows}, 1, at::kFloat, device)),
                       gate = at::sigmoid(normal({rows, 1}, 2, at::kFloat, device));
      const auto ours = run_halting_loss(halting_loss, halt, gate),
                 plain = run_halting_loss(plain_halting_loss, halt, gate),
                 exact = run_halting_loss(plain_halting_loss, halt.to(at::kDouble), gate.to(at::kDouble));
      const std::string what = cat(cycles, " cycles, ", rows, " rows");
      // All terms are positive but for the target: what is squared is at most so large.
      const double excess = static_cast<double>(cycles) + 1.25;
      expect_as_good(ours[0], plain[0], exact[0], what, excess * excess);
      expect_as_good(ours[1], plain[1], exact[1], what + ", gradient", 6 * excess / static_cast<double>(rows));
    }
  }
}

}  // namespace hrm::ops::testing

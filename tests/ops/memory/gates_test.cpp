#include "hrm/ops/gates.h"

#include "ops/memory/gates_cases.h"
#include "ops/memory/gates_impl.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

constexpr double kStep = 1e-6;

// Central differences of `loss` in every element of `of`: truncation kStep^2, rounding 1e-16 / kStep.
template <class Loss>
void expect_slope(const at::Tensor& of, const at::Tensor& grad, const Loss& loss, const std::string& what) {
  const at::NoGradGuard no_grad;
  for (int64_t i = 0; i < of.numel(); ++i) {
    const at::Tensor element = of.view(-1)[i];
    const double before = element.item<double>();
    element.fill_(before + kStep);
    const double up = loss();
    element.fill_(before - kStep);
    const double down = loss();
    element.fill_(before);
    EXPECT_NEAR(grad.reshape(-1)[i].item<double>(), (up - down) / (2 * kStep), 1e-8) << what << " " << i;
  }
}

TEST(Gates, BridgeAsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) expect_good_gates(dtype, at::kCPU);
  expect_gate_edges(at::kCPU);
}

TEST(Gates, HaltAsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) expect_good_halts(dtype, at::kCPU);
}

TEST(Gates, HaltingLossAsGoodAsPlainAten) {
  expect_good_halting_losses(at::kCPU);
}

TEST(Gates, BridgeFiniteDifferencesInFloat64) {
  GateCase c = make_gate(9, 2, 3, at::kDouble);
  c.weight = at::tensor({1.5, -1.0, 0.75}, at::kDouble).view({1, 3});
  c.scale = 3;  // 0 where the sigmoid is below 1/3, 1 where it is above 7/9
  c.offset = -0.75;
  c.warmup = at::full({}, 0.75, at::kDouble);
  const GateOutcome ours = run_gate(bridge_gate, c);
  // Both ends of the clamp, and gates between them.
  EXPECT_GT(ours.gate.eq(0).sum().item<int64_t>(), 0);
  EXPECT_GT(ours.gate.eq(1).sum().item<int64_t>(), 0);
  EXPECT_GT(ours.gate.gt(0).logical_and(ours.gate.lt(1)).sum().item<int64_t>(), 1);
  const auto loss = [&] {
    const BridgeGate out = bridge_gate(c.z, c.weight, c.bias, c.bridge, c.scale, c.offset, c.warmup);
    return ((out.gate * c.grad_gate).sum() + (out.memory * c.grad_memory).sum()).item<double>();
  };
  expect_slope(c.z, ours.grad_z, loss, "z");
  expect_slope(c.weight, ours.grad_weight, loss, "weight");
  expect_slope(c.bias, ours.grad_bias, loss, "bias");
  expect_slope(c.bridge, ours.grad_bridge, loss, "bridge");
}

TEST(Gates, HaltFiniteDifferencesInFloat64) {
  const HaltCase c = make_halt(3, 2, 2, 3, at::kDouble);
  const HaltOutcome ours = run_halt(halt_probabilities, c);
  const auto loss = [&] { return (halt_probabilities(c.states, c.weight, c.bias) * c.grad_p).sum().item<double>(); };
  for (int64_t cycle = 0; cycle < 3; ++cycle) {
    expect_slope(c.states[static_cast<size_t>(cycle)], ours.grad_states[cycle], loss, cat("state ", cycle));
  }
  expect_slope(c.weight, ours.grad_weight, loss, "weight");
  expect_slope(c.bias, ours.grad_bias, loss, "bias");
}

TEST(Gates, HaltingLossFiniteDifferencesInFloat64) {
  const at::Tensor halt = at::sigmoid(normal({3, 4}, 1, at::kDouble)),
                   gate = at::sigmoid(normal({4, 1}, 2, at::kDouble));
  const auto ours = run_halting_loss(halting_loss, halt, gate);
  expect_slope(
      halt, ours[1], [&] { return 3 * halting_loss(halt, gate, 1.25).item<double>(); }, "halt");
}

// Leaves that are frozen get none, and each use adds to the buffers.
TEST(Gates, GradientsGoWhereTheyAreNeeded) {
  const GateCase c = make_gate(6, 2, 8, at::kBFloat16);
  const HaltCase h = make_halt(2, 6, 3, 8, at::kBFloat16);
  const auto use = [&](const at::Tensor& weight, const at::Tensor& bias) {
    const BridgeGate out = bridge_gate(c.z, weight, bias, c.bridge, 1, 0);
    (out.gate.sum() + halt_probabilities(h.states, weight, bias).sum()).backward();
  };
  const at::Tensor weight = as_leaf(c.weight), bias = as_leaf(c.bias);
  use(weight, bias);
  const at::Tensor once = weight.grad().clone();
  const void* buffer = weight.grad().const_data_ptr();
  use(weight, bias);
  EXPECT_EQ(weight.grad().const_data_ptr(), buffer);
  EXPECT_TRUE(at::allclose(weight.grad(), 2 * once));
  use(c.weight, bias);
  EXPECT_TRUE(at::allclose(weight.grad(), 2 * once));
  use(weight, c.bias);
  EXPECT_TRUE(at::allclose(weight.grad(), 3 * once));
  EXPECT_FALSE(bridge_gate(c.z, c.weight, c.bias, c.bridge, 1, 0).memory.requires_grad());
  EXPECT_FALSE(halting_loss(at::ones({2, 6}), as_leaf(at::ones({6, 1})), 1).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(halt_probabilities(h.states, weight, bias).requires_grad());
}

TEST(Gates, BadInputIsNamed) {
  const GateCase c = make_gate(3, 2, 8, at::kFloat);
  const auto gate = [&](const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bridge,
                        const at::Tensor& warmup) {
    return error_of([&] { bridge_gate(z, weight, c.bias, bridge, 1, 0, warmup); });
  };
  expect_message(gate(c.z, c.weight, at::zeros({3, 2, 9}), {}), {"hrm::bridge_gate", "[3, 8]", "[3, 2, 9]"});
  expect_message(gate(c.z, c.weight, at::zeros({3, 2, 8}, at::kHalf), {}), {"hrm::bridge_gate", "Float", "Half"});
  expect_message(gate(c.z, at::zeros({2, 8}), c.bridge, {}), {"hrm::bridge_gate", "(1, D)", "[2, 8]"});
  expect_message(gate(c.z, c.weight.to(at::kHalf), c.bridge, {}), {"hrm::bridge_gate", "Float", "Half"});
  expect_message(gate(c.z, c.weight, c.bridge, at::zeros({1})), {"hrm::bridge_gate", "warmup", "[1]"});
  const auto backward = [&](const at::Tensor& grad_memory, const at::Tensor& open, const OptionalTensor& grad_weight) {
    return error_of([&] {
      bridge_gate_backward_(c.grad_gate, grad_memory, c.z, c.weight, c.bridge, open, {1, 0, {}}, grad_weight, {});
    });
  };
  const std::string op = "hrm::bridge_gate_backward_";
  expect_message(backward(at::zeros({3, 8}), c.grad_gate, {}), {op, "grad_memory", "[3, 2, 8]", "[3, 8]"});
  expect_message(backward(c.grad_memory, at::zeros({3}), {}), {op, "open", "shape [3, 1]", "[3]"});
  expect_message(backward(c.grad_memory, c.grad_gate, at::zeros({1, 7})), {op, "grad_weight", "[1, 7]"});

  const HaltCase h = make_halt(2, 3, 2, 8, at::kFloat);
  const auto halt = [&](at::TensorList states) {
    return error_of([&] { halt_probabilities(states, h.weight, h.bias); });
  };
  expect_message(halt({}), {"hrm::halt_probabilities", "(B, M, D)"});
  expect_message(halt({h.states[0], at::zeros({3, 2, 9})}), {"hrm::halt_probabilities", "[3, 2, 8]", "[3, 2, 9]"});
  expect_message(halt({at::zeros({3, 2, 9})}), {"hrm::halt_probabilities", "[1, 8]", "[3, 2, 9]"});
  expect_message(error_of([&] {
                   halt_probabilities_backward_(h.grad_p, at::zeros({3, 2}), h.states, h.weight, {}, {});
                 }),
                 {"hrm::halt_probabilities_backward_", "[2, 3]", "[3, 2]"});
  expect_message(error_of([&] {
                   halting_loss(h.grad_p, at::zeros({4, 1}), 1);
                 }),
                 {"hrm::halting_loss", "[2, 3]", "[4, 1]"});
  expect_message(error_of([&] {
                   halting_loss(h.grad_p, at::zeros({3, 1}, at::kDouble), 1);
                 }),
                 {"hrm::halting_loss", "Float", "Double"});
}

TEST(Gates, SecondDerivativeIsRefused) {
  const at::Tensor weight = as_leaf(at::ones({1, 4})), bias = as_leaf(at::ones({1})), z = as_leaf(at::ones({2, 4}));
  const auto twice = [&](const at::Tensor& value) {
    return error_of([&] { torch::autograd::grad({value}, {z}, {}, std::nullopt, /*create_graph=*/true); });
  };
  expect_message(twice(bridge_gate(z, weight, bias, at::ones({2, 3, 4}), 1, 0).gate.sum()),
                 {"hrm::bridge_gate", "second derivative"});
  const at::Tensor p = halt_probabilities(z.unsqueeze(1), weight, bias);
  expect_message(twice(p.sum()), {"hrm::halt_probabilities", "second derivative"});
  expect_message(twice(halting_loss(p, at::ones({2}), 1)), {"hrm::halting_loss", "second derivative"});
}

}  // namespace
}  // namespace hrm::ops

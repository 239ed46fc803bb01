#pragma once
// Checks of conv_swiglu that hold on every device.

#include "hrm/ops/conv_swiglu.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct ConvSwigluInputs {
  at::Tensor gate_up, taps, bias, grad_act;
};

// Sizes B, L, F.
inline ConvSwigluInputs conv_swiglu_inputs(int64_t B, int64_t L, int64_t F, at::ScalarType dtype, at::Device device,
                                           uint64_t seed = 1) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {normal({B, L, 2 * F}, seed, dtype, device), normal({F, 2}, seed + 1, wide, device),
          normal({F}, seed + 2, wide, device), normal({B, L, F}, seed + 3, dtype, device)};
}

// The formula in plain ATen operations, differentiated by ATen itself.
inline at::Tensor plain_conv_swiglu(const at::Tensor& gate_up, const at::Tensor& taps, const at::Tensor& bias) {
  const auto halves = gate_up.chunk(2, -1);
  const at::Tensor u = at::silu(halves[0]) * halves[1];
  const at::Tensor before = at::constant_pad_nd(u, {0, 0, 1, 0}).narrow(1, 0, u.size(1));
  const at::Tensor filter = taps.to(u.scalar_type());
  return at::silu(before * filter.select(1, 0) + u * filter.select(1, 1) + bias.to(u.scalar_type()));
}

// The same by ATen's convolution, padded and cut as the published model does.
inline at::Tensor convolved_swiglu(const at::Tensor& gate_up, const at::Tensor& taps, const at::Tensor& bias) {
  const auto halves = gate_up.chunk(2, -1);
  const at::Tensor u = (at::silu(halves[0]) * halves[1]).transpose(1, 2);
  const at::Tensor c = at::conv1d(u, taps.unsqueeze(1), bias, {1}, at::IntArrayRef{1}, {1}, bias.size(0));
  return at::silu(c.narrow(2, 0, u.size(2))).transpose(1, 2);
}

struct ConvSwigluResult {
  at::Tensor act, grad_gate_up, grad_taps, grad_bias;
};

template <class Gate>
ConvSwigluResult run_conv_swiglu(const Gate& gate, const ConvSwigluInputs& in, at::ScalarType dtype,
                                 at::ScalarType wide) {
  const auto leaf = [](const at::Tensor& t, at::ScalarType type) { return t.detach().to(type).requires_grad_(); };
  const at::Tensor gate_up = leaf(in.gate_up, dtype), taps = leaf(in.taps, wide), bias = leaf(in.bias, wide);
  const at::Tensor act = gate(gate_up, taps, bias);
  const auto grads = torch::autograd::grad({act}, {gate_up, taps, bias}, {in.grad_act.to(dtype)});
  return {act.detach(), grads[0], grads[1], grads[2]};
}

// Value and gradients against float64, with at most twice the error of plain ATen.
inline void expect_good_conv_swiglu(const ConvSwigluInputs& in, const std::string& what) {
  const at::ScalarType dtype = in.gate_up.scalar_type(), wide = in.taps.scalar_type();
  const ConvSwigluResult ours = run_conv_swiglu(conv_swiglu, in, dtype, wide);
  const ConvSwigluResult plain = run_conv_swiglu(plain_conv_swiglu, in, dtype, wide);
  const ConvSwigluResult exact = run_conv_swiglu(convolved_swiglu, in, at::kDouble, at::kDouble);
  expect_as_good(ours.act, plain.act, exact.act, what + ", value");
  expect_as_good(ours.grad_gate_up, plain.grad_gate_up, exact.grad_gate_up, what + ", gradient of gate_up");
  const auto terms = static_cast<double>(in.gate_up.size(0) * in.gate_up.size(1));
  expect_as_good(ours.grad_taps, plain.grad_taps, exact.grad_taps, what + ", gradient of taps", 4 * terms);
  expect_as_good(ours.grad_bias, plain.grad_bias, exact.grad_bias, what + ", gradient of bias", 4 * terms);

  const at::NoGradGuard no_grad;
  expect_same_bits(conv_swiglu(in.gate_up, in.taps, in.bias), ours.act, what + ", without gradient");
  const auto [grad, taps, bias] = conv_swiglu_backward(in.grad_act, in.gate_up, in.taps, in.bias, false);
  expect_same_bits(grad, ours.grad_gate_up, what + ", gradient of gate_up alone");
  EXPECT_FALSE(taps.defined() || bias.defined()) << what;
}

struct ConvSwigluSize {
  int64_t B, L, F;
};

// Lengths of one run of positions, on both sides of its end, and of several; widths of elements and of packs, less and
// more than the channels of a block.
inline std::vector<ConvSwigluSize> conv_swiglu_sizes() {
  return {{1, 1, 1}, {3, 2, 3}, {2, 10, 256}, {5, 16, 8}, {2, 17, 97}, {3, 82, 300}, {70, 33, 132}, {1, 129, 64}};
}

// No value crosses from one sample to another, and none from a later position to an earlier one.
inline void expect_causal_conv_swiglu(at::Device device) {
  const ConvSwigluInputs in = conv_swiglu_inputs(3, 35, 24, at::kFloat, device);
  const at::Tensor before = conv_swiglu(in.gate_up, in.taps, in.bias);
  for (const int64_t position : {0, 15, 16, 34}) {
    at::Tensor changed = in.gate_up.clone();
    changed[1][position] += 1;
    const at::Tensor differs = conv_swiglu(changed, in.taps, in.bias).ne(before).any(-1).to(at::kCPU);
    at::Tensor want = at::zeros({3, 35}, at::kBool);
    want[1].narrow(0, position, std::min<int64_t>(2, 35 - position)).fill_(true);
    EXPECT_TRUE(at::equal(differs, want)) << "position " << position;
  }
}

}  // namespace hrm::ops::testing

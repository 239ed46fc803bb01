#include "ops/sequence/conv_swiglu_cases.h"

#include <ATen/Parallel.h>

#include "ops/sequence/conv_swiglu_impl.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(ConvSwiglu, AsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [B, L, F] : conv_swiglu_sizes()) {
      expect_good_conv_swiglu(conv_swiglu_inputs(B, L, F, dtype, at::kCPU), cat(dtype, " ", B, "x", L, "x", F));
    }
  }
}

TEST(ConvSwiglu, ReferenceIsAsGood) {
  const WithReference with_reference;
  for (const auto& [B, L, F] : conv_swiglu_sizes()) {
    expect_good_conv_swiglu(conv_swiglu_inputs(B, L, F, at::kFloat, at::kCPU), cat(B, "x", L, "x", F));
  }
}

TEST(ConvSwiglu, CausalWithinASample) {
  expect_causal_conv_swiglu(at::kCPU);
}

TEST(ConvSwiglu, FiniteDifferencesInFloat64) {
  const ConvSwigluInputs in = conv_swiglu_inputs(2, 3, 2, at::kDouble, at::kCPU);
  const ConvSwigluResult ours = run_conv_swiglu(conv_swiglu, in, at::kDouble, at::kDouble);
  constexpr double kStep = 1e-6;
  const auto check = [&](at::Tensor ConvSwigluInputs::*input, const at::Tensor& grad, const char* what) {
    for (int64_t i = 0; i < grad.numel(); ++i) {
      const auto loss = [&](double move) {
        ConvSwigluInputs moved = in;
        moved.*input = (in.*input).clone();
        (moved.*input).view(-1)[i] += move;
        return (conv_swiglu(moved.gate_up, moved.taps, moved.bias) * in.grad_act).sum().item<double>();
      };
      // Central differences: truncation kStep^2, rounding 1e-16 / kStep.
      EXPECT_NEAR(grad.reshape(-1)[i].item<double>(), (loss(kStep) - loss(-kStep)) / (2 * kStep), 1e-8) << what << i;
    }
  };
  check(&ConvSwigluInputs::gate_up, ours.grad_gate_up, "gate_up ");
  check(&ConvSwigluInputs::taps, ours.grad_taps, "taps ");
  check(&ConvSwigluInputs::bias, ours.grad_bias, "bias ");
}

TEST(ConvSwiglu, SameBitsForAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  const ConvSwigluInputs in = conv_swiglu_inputs(7, 40, 600, at::kFloat, at::kCPU);
  at::set_num_threads(1);
  const ConvSwigluResult one = run_conv_swiglu(conv_swiglu, in, at::kFloat, at::kFloat);
  at::set_num_threads(3);
  const ConvSwigluResult three = run_conv_swiglu(conv_swiglu, in, at::kFloat, at::kFloat);
  at::set_num_threads(before);
  expect_same_bits(one.act, three.act, "value");
  expect_same_bits(one.grad_gate_up, three.grad_gate_up, "gradient of gate_up");
  expect_same_bits(one.grad_taps, three.grad_taps, "gradient of taps");
  expect_same_bits(one.grad_bias, three.grad_bias, "gradient of bias");
}

TEST(ConvSwiglu, AnyStridesAndNoRows) {
  ConvSwigluInputs in = conv_swiglu_inputs(4, 6, 6, at::kFloat, at::kCPU);
  in.gate_up = normal({12, 6, 4}, 1, at::kFloat).transpose(0, 2);
  in.taps = normal({2, 6}, 2, at::kFloat).t();
  expect_good_conv_swiglu(in, "strided");
  for (const auto& [B, L, F] : {ConvSwigluSize{0, 3, 2}, ConvSwigluSize{2, 0, 2}, ConvSwigluSize{2, 3, 0}}) {
    const ConvSwigluResult none =
        run_conv_swiglu(conv_swiglu, conv_swiglu_inputs(B, L, F, at::kFloat, at::kCPU), at::kFloat, at::kFloat);
    EXPECT_EQ(none.act.sizes(), (at::IntArrayRef{B, L, F}));
    EXPECT_TRUE(at::equal(none.grad_taps, at::zeros({F, 2})));
    EXPECT_TRUE(at::equal(none.grad_bias, at::zeros({F})));
  }
}

TEST(ConvSwiglu, BadInputIsNamed) {
  const ConvSwigluInputs in = conv_swiglu_inputs(2, 3, 4, at::kFloat, at::kCPU);
  const auto message = [&](const at::Tensor& gate_up, const at::Tensor& taps, const at::Tensor& bias) {
    return error_of([&] { conv_swiglu(gate_up, taps, bias); });
  };
  expect_message(message(at::zeros({2, 8}), in.taps, in.bias), {"hrm::conv_swiglu", "(B, L, 2F)", "[2, 8]"});
  expect_message(message(at::zeros({2, 3, 9}), in.taps, in.bias), {"hrm::conv_swiglu", "[2, 3, 9]"});
  expect_message(message(in.gate_up, in.taps.view({4, 1, 2}), in.bias), {"(F, 2)", "[4, 1, 2]"});
  expect_message(message(in.gate_up, in.taps, at::zeros({3})), {"[3]", "[2, 3, 8]"});
  expect_message(message(in.gate_up.to(at::kBFloat16), in.taps.to(at::kBFloat16), in.bias), {"Float", "BFloat16"});
  expect_message(error_of([&] {
                   conv_swiglu_backward(at::zeros({2, 3, 8}), in.gate_up, in.taps, in.bias);
                 }),
                 {"hrm::conv_swiglu_backward", "[2, 3, 8]"});
}

TEST(ConvSwiglu, SecondDerivativeIsRefused) {
  const ConvSwigluInputs in = conv_swiglu_inputs(2, 3, 4, at::kFloat, at::kCPU);
  const at::Tensor gate_up = in.gate_up.requires_grad_();
  EXPECT_ANY_THROW({
    const auto grad = torch::autograd::grad({conv_swiglu(gate_up, in.taps, in.bias).square().sum()}, {gate_up}, {},
                                            std::nullopt, /*create_graph=*/true);
    grad[0].square().sum().backward();
  });
}

}  // namespace
}  // namespace hrm::ops

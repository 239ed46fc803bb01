#include "hrm/ops/swiglu.h"

#include "ops/linear/swiglu_cases.h"
#include "ops/linear/swiglu_impl.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Swiglu, AsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : swiglu_widths()) {
      expect_good_swiglu(normal({5, 3, 2 * width}, 1, dtype), cat(dtype, " width ", width));
    }
  }
}

TEST(Swiglu, FiniteDifferencesInFloat64) {
  const at::Tensor gate_up = 2 * normal({2, 6}, 1, at::kDouble);
  const at::Tensor grad_act = normal({2, 3}, 3, at::kDouble);
  const SwigluResult ours = run_swiglu(swiglu, gate_up, grad_act);
  constexpr double kStep = 1e-6;
  for (int64_t i = 0; i < gate_up.numel(); ++i) {
    const auto loss = [&](double move) {
      at::Tensor moved = gate_up.clone();
      moved.view(-1)[i] += move;
      return (swiglu(moved) * grad_act).sum().item<double>();
    };
    // Central differences: truncation kStep^2, rounding 1e-16 / kStep.
    EXPECT_NEAR(ours.grad.reshape(-1)[i].item<double>(), (loss(kStep) - loss(-kStep)) / (2 * kStep), 1e-8) << i;
  }
}

TEST(Swiglu, NonContiguousInputs) {
  const at::Tensor gate_up = normal({12, 6, 4}, 1, at::kFloat).transpose(0, 2);
  ASSERT_FALSE(gate_up.is_contiguous());
  expect_good_swiglu(gate_up, "strided");
  EXPECT_TRUE(swiglu(gate_up).is_contiguous());
  // A gradient that arrives expanded (from a sum, say) has stride 0.
  const at::Tensor leaf = gate_up.contiguous().requires_grad_();
  const auto by_sum = torch::autograd::grad({swiglu(leaf).sum()}, {leaf});
  const auto by_ones = torch::autograd::grad({swiglu(leaf)}, {leaf}, {at::ones({4, 6, 6})});
  expect_same_bits(by_sum[0], by_ones[0]);
}

TEST(Swiglu, EmptyBatch) {
  const at::Tensor gate_up = at::zeros({0, 4, 8}).requires_grad_();
  const at::Tensor act = swiglu(gate_up);
  EXPECT_EQ(act.sizes(), (std::vector<int64_t>{0, 4, 4}));
  EXPECT_EQ(torch::autograd::grad({act}, {gate_up}, {at::zeros({0, 4, 4})})[0].sizes(), gate_up.sizes());
}

TEST(Swiglu, BadInputIsNamed) {
  expect_message(error_of([] { swiglu(at::zeros({2, 9})); }), {"hrm::swiglu", "(..., 2F)", "[2, 9]"});
  expect_message(error_of([] { swiglu(at::zeros({})); }), {"hrm::swiglu", "(..., 2F)"});
  expect_message(error_of([] { swiglu(at::zeros({2, 8}, at::kInt)); }), {"hrm::swiglu", "floating-point", "Int"});
  expect_message(error_of([] {
                   swiglu_backward(at::zeros({2, 8}), at::zeros({2, 8}));
                 }),
                 {"hrm::swiglu_backward", "[2, 8]"});
  expect_message(error_of([] {
                   swiglu_backward(at::zeros({2, 4}, at::kHalf), at::zeros({2, 8}));
                 }),
                 {"hrm::swiglu_backward", "Half", "Float"});
}

TEST(Swiglu, SecondDerivativeIsRefused) {
  const at::Tensor gate_up = normal({2, 4}, 1, at::kFloat).requires_grad_();
  EXPECT_ANY_THROW({
    const auto grad =
        torch::autograd::grad({swiglu(gate_up).square().sum()}, {gate_up}, {}, std::nullopt, /*create_graph=*/true);
    grad[0].square().sum().backward();
  });
}

}  // namespace
}  // namespace hrm::ops

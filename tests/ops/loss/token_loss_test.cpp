#include "hrm/ops/token_loss.h"

#include "ops/loss/token_loss_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(TokenLoss, AsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) expect_good_sizes(dtype, at::kCPU);
}

TEST(TokenLoss, FirstOfEquals) {
  expect_first_of_equals(at::kCPU);
}

TEST(TokenLoss, Strides) {
  expect_good_strides(at::kCPU);
}

TEST(TokenLoss, FiniteDifferencesInFloat64) {
  for (const LossKind kind : {LossKind::stablemax, LossKind::softmax}) {
    TokenCase c = make_tokens(2, 3, 1, 1, 4, at::kDouble, kind, LossPrecision::f64, at::kCPU);
    const TokenResult ours = run_tokens(c);
    const at::Tensor weight = weights_for(c, at::kDouble);
    // softmax is always computed in float32, so its differences are coarse.
    const double step = kind == LossKind::stablemax ? 1e-6 : 1e-2;
    const double tolerance = kind == LossKind::stablemax ? 1e-8 : 1e-4;
    for (int64_t i = 0; i < c.logits.numel(); ++i) {
      const auto loss = [&](double move) {
        at::Tensor moved = c.logits.clone();
        moved.view(-1)[i] += move;
        return (token_loss(moved, c.labels, c.first, kind, c.precision).loss * weight).sum().item<double>();
      };
      EXPECT_NEAR(ours.grad.reshape(-1)[i].item<double>(), (loss(step) - loss(-step)) / (2 * step), tolerance) << i;
    }
  }
}

TEST(TokenLoss, EmptyBatch) {
  const at::Tensor logits = at::zeros({0, 4, 8}).requires_grad_();
  const TokenLoss out = token_loss(logits, at::zeros({0, 3}, at::kInt), 1, LossKind::stablemax, LossPrecision::f64);
  EXPECT_EQ(out.loss.sizes(), (std::vector<int64_t>{0}));
  EXPECT_EQ(torch::autograd::grad({out.loss.sum()}, {logits})[0].sizes(), logits.sizes());
}

TEST(TokenLoss, BadInputIsNamed) {
  const auto message = [](const at::Tensor& logits, const at::Tensor& labels, int64_t first) {
    return error_of([&] { token_loss(logits, labels, first, LossKind::stablemax, LossPrecision::f64); });
  };
  const at::Tensor logits = at::zeros({2, 4, 8}), labels = at::zeros({2, 3}, at::kInt);
  expect_message(message(logits, at::zeros({3, 3}, at::kInt), 0), {"hrm::token_loss", "[2, 4, 8]", "[3, 3]"});
  expect_message(message(logits, labels, 2), {"hrm::token_loss", "positions 2 to 5", "[2, 4, 8]"});
  expect_message(message(logits, labels.to(at::kLong), 1), {"hrm::token_loss", "int32", "Long"});
  expect_message(
      error_of([&] { token_loss_backward(at::zeros({3}), logits, labels, 1, LossKind::softmax, LossPrecision::f32); }),
      {"hrm::token_loss_backward", "[3]", "[2, 4, 8]"});
}

TEST(TokenLoss, SecondDerivativeIsRefused) {
  const at::Tensor logits = normal({2, 4, 8}, 1, at::kFloat).requires_grad_();
  const TokenLoss out = token_loss(logits, at::zeros({2, 3}, at::kInt), 1, LossKind::stablemax, LossPrecision::f64);
  EXPECT_ANY_THROW({
    const auto grad = torch::autograd::grad({out.loss.square().sum()}, {logits}, {}, std::nullopt, true);
    grad[0].square().sum().backward();
  });
}

}  // namespace
}  // namespace hrm::ops

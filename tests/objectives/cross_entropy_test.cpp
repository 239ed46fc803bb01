#include "hrm/objectives/cross_entropy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hrm/data/batch.h"

namespace hrm::objectives {
namespace {

double largest(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach().to(at::kDouble) - b.detach().to(at::kDouble)).abs().max().item<double>();
}

// Differentiated by autograd, operation by operation.
at::Tensor plain_stablemax(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor x = logits.to(at::kDouble);
  const at::Tensor s = at::where(x.ge(0), x + 1, 1 / (1 - x + 1e-30));
  const at::Tensor log_p = at::log(s / s.sum(-1, /*keepdim=*/true));
  const at::Tensor ignored = labels.eq(data::kIgnoreLabel);
  const at::Tensor index = labels.to(at::kLong).masked_fill(ignored, 0).unsqueeze(-1);
  return -log_p.gather(-1, index).squeeze(-1).masked_fill(ignored, 0);
}

TEST(Stablemax, ValueAndGradient) {
  const at::Tensor logits = (5 * at::randn({3, 6, 11}, at::kDouble)).requires_grad_();
  at::Tensor labels = at::randint(0, 11, {3, 6}, at::kInt);
  labels[1].fill_(data::kIgnoreLabel);
  const at::Tensor weight = at::randn({3, 6}, at::kDouble);
  const at::Tensor want = plain_stablemax(logits, labels);
  (want * weight).sum().backward();
  const at::Tensor want_grad = logits.grad().clone();
  logits.mutable_grad() = at::Tensor();
  const at::Tensor got = cross_entropy(logits, labels, LossKind::stablemax, LossPrecision::f64);
  EXPECT_LT(largest(got, want), 1e-13);
  (got * weight).sum().backward();
  EXPECT_LT(largest(logits.grad(), want_grad), 1e-13);
  EXPECT_EQ(got[1].abs().max().item<double>(), 0);
  EXPECT_EQ(logits.grad()[1].abs().max().item<double>(), 0);
}

// At x = 0 both branches of s meet with slope 1.
TEST(Stablemax, GradientByFiniteDifferences) {
  const at::Tensor labels = at::zeros({1}, at::kInt);
  for (const double at_x : {-3.0, -1e-3, 0.0, 1e-3, 3.0}) {
    const auto loss = [&](double x) {
      const at::Tensor logits = at::tensor({x, 0.5, -0.7}, at::kDouble).view({1, 3});
      return cross_entropy(logits, labels, LossKind::stablemax, LossPrecision::f64).item<double>();
    };
    const at::Tensor logits = at::tensor({at_x, 0.5, -0.7}, at::kDouble).view({1, 3}).requires_grad_();
    cross_entropy(logits, labels, LossKind::stablemax, LossPrecision::f64).sum().backward();
    const double step = 1e-6;
    EXPECT_NEAR(logits.grad()[0][0].item<double>(), (loss(at_x + step) - loss(at_x - step)) / (2 * step), 1e-6) << at_x;
  }
}

// Where softmax saturates, stablemax goes on learning: log p stays finite and its gradient above zero.
TEST(Stablemax, LargeLogits) {
  const at::Tensor logits = at::tensor({1e6F, -1e6F}).view({1, 2}).requires_grad_();
  const at::Tensor loss = cross_entropy(logits, at::ones({1}, at::kInt), LossKind::stablemax, LossPrecision::f32);
  EXPECT_NEAR(loss.item<double>(), 2 * std::log(1e6), 1e-3);
  loss.sum().backward();
  EXPECT_LT(logits.grad()[0][1].item<double>(), 0);
}

TEST(CrossEntropy, Types) {
  const at::Tensor labels = at::randint(0, 11, {4}, at::kInt);
  const at::Tensor logits = at::randn({4, 11}).to(at::kBFloat16).requires_grad_();
  for (const LossKind kind : {LossKind::stablemax, LossKind::softmax}) {
    for (const LossPrecision precision : {LossPrecision::f64, LossPrecision::f32}) {
      const at::Tensor loss = cross_entropy(logits, labels, kind, precision);
      const bool wide = kind == LossKind::stablemax && precision == LossPrecision::f64;
      EXPECT_EQ(loss.scalar_type(), wide ? at::kDouble : at::kFloat);
      logits.mutable_grad() = at::Tensor();
      loss.sum().backward();
      EXPECT_EQ(logits.grad().scalar_type(), at::kBFloat16);
    }
  }
}

// Logits as the models give them: a view without the prefix slots.
TEST(CrossEntropy, ViewsOfLogits) {
  const at::Tensor whole = at::randn({2, 5, 7}), labels = at::randint(0, 7, {2, 3}, at::kInt);
  for (const LossKind kind : {LossKind::stablemax, LossKind::softmax}) {
    EXPECT_EQ(largest(cross_entropy(whole.narrow(1, 2, 3), labels, kind, LossPrecision::f32),
                      cross_entropy(whole.narrow(1, 2, 3).contiguous(), labels, kind, LossPrecision::f32)),
              0);
  }
}

}  // namespace
}  // namespace hrm::objectives

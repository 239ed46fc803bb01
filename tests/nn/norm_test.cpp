// Norms with weights against the plain formula.

#include "hrm/nn/norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace hrm::nn {
namespace {

at::Tensor plain_weighted_norm(const at::Tensor& x, const at::Tensor& weight, double eps, int64_t groups) {
  const at::Tensor parts = x.unflatten(-1, {groups, -1});
  return (parts * at::rsqrt(parts.square().mean(-1, true) + eps)).flatten(-2) * weight;
}

TEST(RmsNorm, ValueAndGradient) {
  for (const int64_t groups : {1, 3}) {
    const at::Tensor x = at::randn({2, 5, 12}, at::kDouble).requires_grad_();
    const at::Tensor weight = at::randn({12}, at::kDouble).requires_grad_(), g = at::randn({2, 5, 12}, at::kDouble);
    (plain_weighted_norm(x, weight, 1e-2, groups) * g).sum().backward();
    const at::Tensor want_x = x.grad().clone(), want_weight = weight.grad().clone();
    x.mutable_grad() = weight.mutable_grad() = at::Tensor();
    const at::Tensor y = rms_norm(x, weight, 1e-2, at::kDouble, groups);
    EXPECT_TRUE(at::allclose(y, plain_weighted_norm(x, weight, 1e-2, groups), 1e-13, 1e-13));
    (y * g).sum().backward();
    EXPECT_TRUE(at::allclose(x.grad(), want_x, 1e-12, 1e-12)) << groups;
    EXPECT_TRUE(at::allclose(weight.grad(), want_weight, 1e-12, 1e-12)) << groups;
  }
}

// Everything but the last rounding is float32, and the weight's gradient is never rounded.
TEST(RmsNorm, RoundsOnce) {
  RmsNorm norm(64, 1e-5, at::kCPU);
  const at::Tensor weight = norm.named_parameters()["weight"];
  const at::Tensor x = at::randn({40, 64}).to(at::kBFloat16);
  {
    const at::NoGradGuard no_grad;
    weight.copy_(at::randn({64}));
  }
  const at::Tensor exact = plain_weighted_norm(x.to(at::kDouble), weight.detach().to(at::kDouble), 1e-5, 1);
  const at::Tensor y = norm.forward(x);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_LE(((y.to(at::kDouble) - exact).abs() / exact.abs()).max().item<double>(), 0x1.01p-8);
  EXPECT_EQ(norm.forward(x, at::kFloat).scalar_type(), at::kFloat);
  EXPECT_LE((norm.forward(x, at::kFloat).to(at::kDouble) - exact).abs().max().item<double>(), 1e-5);

  y.sum().backward();
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor want = (wide * at::rsqrt(wide.square().mean(-1, true) + 1e-5)).sum(0);
  EXPECT_LE((weight.grad().to(at::kDouble) - want).abs().max().item<double>(), 1e-4);
}

TEST(LayerNorm, StartsAsIdentityAndKeepsTheType) {
  LayerNorm norm(16, 1e-5, at::kCPU);
  init_parameters(norm, 0);
  const at::Tensor x = at::randn({3, 16});
  const at::Tensor centred = x - x.mean(-1, true);
  EXPECT_TRUE(at::allclose(norm.forward(x), centred * at::rsqrt(centred.square().mean(-1, true) + 1e-5), 1e-5, 1e-6));
  EXPECT_EQ(norm.forward(x.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace hrm::nn

// The Mamba2 block beside what the reference case shows: finite differences, initial values, bfloat16.

#include "hrm/nn/mamba2.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hrm/base/error.h"
#include "hrm/nn/parameter.h"

namespace hrm::nn {
namespace {

const Mamba2Options kSmall{
    .width = 4, .expand = 2, .head_dim = 4, .state = 3, .groups = 2, .kernel = 3, .chunk = 2, .bias = true};

std::shared_ptr<Mamba2Block> make_block(const Mamba2Options& options) {
  const auto block = std::make_shared<Mamba2Block>(options, at::kCPU);
  init_parameters(*block, 3);
  return block;
}

TEST(Mamba2, FiniteDifferencesInFloat64) {
  const auto block = make_block(kSmall);
  block->to(at::kDouble);
  const at::Tensor x = at::randn({2, 5, 4}, at::kDouble).requires_grad_(), g = at::randn({2, 5, 4}, at::kDouble);
  const at::Tensor mask = at::tensor({0, 1, 1, 1, 1, 1, 1, 1, 0, 1}, at::kInt).view({2, 5});
  const auto loss = [&] { return (block->forward(x, mask, at::kDouble) * g).sum(); };
  loss().backward();
  auto leaves = block->named_parameters();
  leaves.insert("x", x);
  constexpr double kStep = 1e-6;
  for (auto& leaf : leaves) {
    at::Tensor values = leaf.value().detach().view(-1);
    for (int64_t i = 0; i < values.size(0); ++i) {
      const at::NoGradGuard no_grad;
      const double before = values[i].item<double>();
      values[i] = before + kStep;
      const double up = loss().item<double>();
      values[i] = before - kStep;
      const double down = loss().item<double>();
      values[i] = before;
      EXPECT_NEAR(leaf.value().grad().reshape(-1)[i].item<double>(), (up - down) / (2 * kStep), 2e-7)
          << leaf.key() << " " << i;
    }
  }
}

TEST(Mamba2, InitialValues) {
  const auto block = make_block({.width = 32, .head_dim = 4, .groups = 2});
  const auto parameters = block->named_parameters();
  const at::Tensor dt = at::softplus(parameters["mixer.dt_bias"]);
  EXPECT_EQ(dt.size(0), 16);
  EXPECT_GE(dt.min().item<double>(), 0.99e-3);
  EXPECT_LE(dt.max().item<double>(), 0.101);
  EXPECT_GT(dt.std().item<double>(), 1e-3) << "all the same";
  EXPECT_TRUE(at::allclose(parameters["mixer.A_log"].exp(), at::arange(1, 17, at::kFloat), 1e-5));
  EXPECT_TRUE(parameters["mixer.D"].eq(1).all().item<bool>());
  EXPECT_TRUE(parameters["norm.weight"].eq(1).all().item<bool>());
  EXPECT_TRUE(at::equal(parameters["mixer.dt_bias"],
                        make_block({.width = 32, .head_dim = 4, .groups = 2})->named_parameters()["mixer.dt_bias"]));
}

// Products in bfloat16 under a float32 residual stream, which is not rounded.
TEST(Mamba2, BFloat16UnderAFloat32Residual) {
  const Mamba2Options options{.width = 32, .head_dim = 8, .state = 16, .groups = 2, .chunk = 8};
  const auto exact = make_block(options), low = make_block(options);
  ParameterSet set;
  set.build(*low, at::kBFloat16);
  const at::Tensor r = at::randn({2, 12, 32}) + 100;
  const at::NoGradGuard no_grad;
  const at::Tensor want = exact->forward(r, {}, at::kFloat), got = low->forward(r, {}, at::kBFloat16);
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  const at::Tensor mixed = want - r;
  EXPECT_LT((got - want).norm().item<double>(), 0.03 * mixed.norm().item<double>());
}

TEST(Mamba2, RefusesSizesThatDoNotFit) {
  EXPECT_THROW(make_block({.width = 6, .head_dim = 8, .groups = 1}), Error);
  EXPECT_THROW(make_block({.width = 8, .head_dim = 8, .groups = 3}), Error);
  EXPECT_THROW(make_block({.width = 8, .head_dim = 8, .groups = 1, .dt_min = 0.5, .dt_max = 0.1}), Error);
}

}  // namespace
}  // namespace hrm::nn

#include "hrm/nn/moe.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hrm/nn/init.h"
#include "ops/moe/moe_ref.h"
#include "support/expect_error.h"
#include "support/random.h"

namespace hrm::nn {
namespace {

using test::numbers;

constexpr int64_t kMoeWidth = 12, kTokens = 40;

std::shared_ptr<MoeFeedForward> make(MoeOptions options) {
  options.inner = 20;
  auto layer = std::make_shared<MoeFeedForward>(kMoeWidth, options, at::kCPU);
  init_parameters(*layer, 7);
  return layer;
}

at::Tensor weight(MoeFeedForward& layer, const char* name, at::IntArrayRef sizes) {
  return layer.named_parameters()[name].detach().view(sizes);
}

// The plain formula with the layer's weights.
at::Tensor plain_moe(MoeFeedForward& layer, const at::Tensor& x) {
  const MoeOptions& o = layer.options();
  const ops::reference::MoeOptions options{
      o.top_k, o.score == ops::MoeScore::sigmoid ? ops::reference::Router::sigmoid : ops::reference::Router::softmax,
      o.normalize, o.capacity_factor};
  const auto routing = ops::reference::moe_route(at::linear(x, weight(layer, "router.weight", {o.experts, kMoeWidth})),
                                                 options, layer.choice_bias());
  at::Tensor y = ops::reference::moe_experts(x, routing, weight(layer, "up.weight", {o.experts, o.inner, kMoeWidth}),
                                             weight(layer, "down.weight", {o.experts, kMoeWidth, o.inner}));
  if (o.shared_experts > 0) {
    const int64_t inner = o.shared_experts * o.inner;
    y = y + at::linear(at::gelu(at::linear(x, weight(layer, "shared.up.weight", {inner, kMoeWidth}))),
                       weight(layer, "shared.down.weight", {kMoeWidth, inner}));
  }
  return y;
}

TEST(MoeLayer, IsThePlainFormula) {
  const at::Tensor x = numbers({kTokens, kMoeWidth}, 1);
  MoeOptions options{.experts = 5, .top_k = 2};
  for (const double capacity : {0.0, 0.7}) {
    for (const auto score : {ops::MoeScore::softmax, ops::MoeScore::sigmoid}) {
      for (const bool normalize : {false, true}) {
        for (const int64_t shared : {0, 2}) {
          options.capacity_factor = capacity;
          options.score = score;
          options.normalize = normalize;
          options.shared_experts = shared;
          const auto layer = make(options);
          EXPECT_TRUE(at::allclose(layer->forward(x), plain_moe(*layer, x), 1e-4, 1e-5))
              << capacity << " " << normalize << " " << shared;
        }
      }
    }
  }
}

// What zero_grad() leaves old is overwritten by a backward pass, and cleared by settle_gradients() without one.
TEST(MoeLayer, OldGradientsAreNotSeen) {
  const auto layer = make({.experts = 4, .top_k = 1});
  ParameterSet set;
  set.build(*layer, at::kFloat);
  const at::Tensor x = numbers({kTokens, kMoeWidth}, 1);
  const auto step = [&](bool backward) {
    set.zero_grad();
    if (backward) layer->forward(x).square().sum().backward();
    set.settle_gradients();
    return set.flat_grad().clone();
  };
  const at::Tensor first = step(true);
  EXPECT_GT(first.abs().max().item<float>(), 0);
  EXPECT_TRUE(at::equal(step(true), first));
  EXPECT_EQ(step(false).abs().max().item<float>(), 0);
  EXPECT_TRUE(at::equal(step(true), first));
}

TEST(MoeLayer, LossesAreOfRecordedCallsAlone) {
  const at::Tensor x = numbers({kTokens, kMoeWidth}, 1);
  const auto layer = make({.experts = 4, .top_k = 1, .load_weight = 0.5, .z_weight = 0.25});
  {
    const at::NoGradGuard no_grad;
    layer->forward(x);
  }
  EXPECT_TRUE(layer->take_auxiliary_losses().empty());
  EXPECT_EQ(layer->counts().sum().item<double>(), 0);
  layer->forward(x);
  const auto losses = layer->take_auxiliary_losses();
  ASSERT_EQ(losses.size(), 2u);
  const at::Tensor logits = at::linear(x, weight(*layer, "router.weight", {4, kMoeWidth}));
  const auto routing = ops::reference::moe_route(logits, {.top_k = 1, .capacity_factor = 0});
  EXPECT_EQ(losses[0].name, "moe_load");
  EXPECT_EQ(losses[0].weight, 0.5);
  EXPECT_NEAR(losses[0].value.item<double>(), ops::reference::moe_load_loss(routing).item<double>(), 1e-5);
  EXPECT_EQ(losses[1].name, "moe_z");
  EXPECT_NEAR(losses[1].value.item<double>(), ops::reference::moe_router_z_loss(logits).item<double>(), 1e-5);
  // Both reach the router.
  (losses[0].value + losses[1].value).backward();
  EXPECT_GT(layer->named_parameters()["router.weight"].grad().abs().max().item<double>(), 0);
}

TEST(MoeLayer, LoadIsToldAndBalanced) {
  MoeOptions options{.experts = 4, .top_k = 1, .bias_rate = 0.5};
  const auto layer = make(options);
  {
    // The first expert wins for every token whose first element is positive: all of them.
    const at::NoGradGuard no_grad;
    at::Tensor router = layer->named_parameters()["router.weight"];
    router.zero_();
    router[0][0] = 1;
  }
  const at::Tensor x = numbers({kTokens, kMoeWidth}, 1).abs(), go = at::zeros({});
  layer->forward(x);
  MoeLoad load = layer->load();
  EXPECT_NEAR(load.entropy.item<double>(), 0, 1e-9);
  EXPECT_NEAR(load.largest.item<double>(), 4, 1e-9);
  EXPECT_EQ(load.dropped.item<double>(), 0);
  layer->balance(at::ones({}));  // a step that is left out
  EXPECT_TRUE(at::equal(layer->choice_bias(), at::zeros({4})));
  layer->forward(x);
  layer->balance(go);
  EXPECT_TRUE(at::equal(layer->choice_bias(), at::tensor({-0.5, 0.5, 0.5, 0.5}, at::kFloat)));
  EXPECT_EQ(layer->counts().sum().item<double>(), 0);
  layer->forward(x);
  EXPECT_LT(layer->load().largest.item<double>() * layer->counts()[0].item<double>(), 4.0 * kTokens);
}

TEST(MoeLayer, DroppedPicksAreCounted) {
  const auto layer = make({.experts = 4, .top_k = 2, .capacity_factor = 0.5});
  layer->forward(numbers({kTokens, kMoeWidth}, 1));
  // Room for 10 picks of each expert: 40 of 80 at most.
  EXPECT_GE(layer->load().dropped.item<double>(), 0.5);
  EXPECT_EQ(layer->counts().narrow(0, 0, 4).sum().item<double>(), 80);
}

TEST(MoeLayer, NumbersThatMakeNoSense) {
  for (const MoeOptions& options :
       {MoeOptions{.experts = 0, .inner = 4}, MoeOptions{.experts = 4, .inner = 0},
        MoeOptions{.experts = 2, .top_k = 3, .inner = 4}, MoeOptions{.inner = 4, .capacity_factor = -1}}) {
    test::expect_error(ExitCode::usage, {"experts"}, [&] { MoeFeedForward(kMoeWidth, options, at::kCPU); });
  }
}

}  // namespace
}  // namespace hrm::nn

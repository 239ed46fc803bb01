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
  const bool gated = o.activation == ops::ExpertActivation::swiglu;
  const int64_t times = gated ? 2 : 1;
  at::Tensor y = ops::reference::moe_experts(
      x, routing, weight(layer, gated ? "gate_up.weight" : "up.weight", {o.experts, times * o.inner, kMoeWidth}),
      weight(layer, "down.weight", {o.experts, kMoeWidth, o.inner}), o.activation);
  if (o.shared_experts > 0) {
    const int64_t inner = o.shared_experts * o.inner;
    const char* const up = gated ? "shared.gate_up_proj.weight" : "shared.up.weight";
    const char* const down = gated ? "shared.down_proj.weight" : "shared.down.weight";
    y = y + ops::reference::moe_shared(x, weight(layer, up, {1, times * inner, kMoeWidth}),
                                       weight(layer, down, {1, kMoeWidth, inner}), o.activation);
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
          for (const auto activation : {ops::ExpertActivation::gelu, ops::ExpertActivation::swiglu}) {
            options.capacity_factor = capacity;
            options.score = score;
            options.normalize = normalize;
            options.shared_experts = shared;
            options.activation = activation;
            const auto layer = make(options);
            EXPECT_TRUE(at::allclose(layer->forward(x), plain_moe(*layer, x), 1e-4, 1e-5))
                << capacity << " " << normalize << " " << shared;
          }
        }
      }
    }
  }
}

// The gradients of everything, beside those of the plain formula.
TEST(MoeLayer, GradientsOfThePlainFormula) {
  for (const auto activation : {ops::ExpertActivation::gelu, ops::ExpertActivation::swiglu}) {
    const auto layer = make(
        {.experts = 5, .top_k = 2, .activation = activation, .normalize = true, .load_weight = 0, .shared_experts = 1});
    const at::Tensor grad = numbers({kTokens, kMoeWidth}, 2);
    const auto parameters = layer->parameters();
    at::Tensor x = numbers({kTokens, kMoeWidth}, 1).requires_grad_();
    ParameterSet set;
    set.build(*layer, at::kFloat);
    set.zero_grad();
    layer->forward(x).backward(grad);
    set.settle_gradients();

    // weight() detaches, so the formula's own leaves are those.
    const MoeOptions& o = layer->options();
    const bool gated = activation == ops::ExpertActivation::swiglu;
    const int64_t rows = gated ? 2 * o.inner : o.inner;
    const auto leaf = [&](const std::string& name, at::IntArrayRef sizes) {
      return weight(*layer, name.c_str(), sizes).clone().requires_grad_();
    };
    const std::string up_name = gated ? "gate_up.weight" : "up.weight";
    const std::string shared_up = gated ? "shared.gate_up_proj.weight" : "shared.up.weight",
                      shared_down = gated ? "shared.down_proj.weight" : "shared.down.weight";
    const at::Tensor router = leaf("router.weight", {o.experts, kMoeWidth}),
                     up = leaf(up_name, {o.experts, rows, kMoeWidth}),
                     down = leaf("down.weight", {o.experts, kMoeWidth, o.inner}),
                     up_of_all = leaf(shared_up, {1, rows, kMoeWidth}),
                     down_of_all = leaf(shared_down, {1, kMoeWidth, o.inner});
    const at::Tensor plain_x = x.detach().clone().requires_grad_();
    const auto routing = ops::reference::moe_route(at::linear(plain_x, router),
                                                   {.top_k = o.top_k, .renormalise = true, .capacity_factor = 0});
    (ops::reference::moe_experts(plain_x, routing, up, down, activation) +
     ops::reference::moe_shared(plain_x, up_of_all, down_of_all, activation))
        .backward(grad);
    const auto named = layer->named_parameters();
    const auto same = [&](const std::string& name, const at::Tensor& want) {
      EXPECT_TRUE(at::allclose(named[name].grad().view(want.sizes()), want.grad(), 1e-4, 1e-5)) << name;
    };
    EXPECT_TRUE(at::allclose(x.grad(), plain_x.grad(), 1e-4, 1e-5));
    same("router.weight", router);
    same(up_name, up);
    same("down.weight", down);
    same(shared_up, up_of_all);
    same(shared_down, down_of_all);
    EXPECT_EQ(parameters.size(), 5u);
  }
}

// Mixtral: a softmax of the picked logits. Qwen3-MoE: one of all, divided by the sum of the picks. OLMoE: not divided.
TEST(MoeLayer, RoutersOfKnownModels) {
  const at::Tensor x = numbers({kTokens, kMoeWidth}, 1);
  for (const bool normalize : {false, true}) {
    const auto layer =
        make({.experts = 5, .top_k = 2, .activation = ops::ExpertActivation::swiglu, .normalize = normalize});
    const MoeOptions& o = layer->options();
    const at::Tensor logits = at::linear(x, weight(*layer, "router.weight", {5, kMoeWidth}));
    const auto [best, ids] = logits.topk(2, -1);
    const at::Tensor weights = normalize ? at::softmax(best, -1) : at::softmax(logits, -1).gather(-1, ids);
    const at::Tensor gate_up = weight(*layer, "gate_up.weight", {5, 2 * o.inner, kMoeWidth}),
                     down = weight(*layer, "down.weight", {5, kMoeWidth, o.inner});
    at::Tensor want = at::zeros_like(x);
    for (int64_t token = 0; token < kTokens; ++token) {
      for (int64_t pick = 0; pick < 2; ++pick) {
        // An expert as Hugging Face writes it: gate_proj, up_proj, down_proj.
        const auto e = ids[token][pick].item<int64_t>();
        const at::Tensor gate_proj = gate_up[e].narrow(0, 0, o.inner), up_proj = gate_up[e].narrow(0, o.inner, o.inner);
        const at::Tensor act = at::silu(gate_proj.mv(x[token])) * up_proj.mv(x[token]);
        want[token] += weights[token][pick] * down[e].mv(act);
      }
    }
    EXPECT_TRUE(at::allclose(layer->forward(x), want, 1e-4, 1e-5)) << normalize;
  }
}

// What zero_grad() leaves old is overwritten by a backward pass, and cleared by settle_gradients() without one.
TEST(MoeLayer, OldGradientsAreNotSeen) {
  for (const auto activation : {ops::ExpertActivation::gelu, ops::ExpertActivation::swiglu}) {
    const auto layer = make({.experts = 4, .top_k = 1, .activation = activation});
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

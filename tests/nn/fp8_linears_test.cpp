#include "hrm/nn/fp8_linears.h"

#include "hrm/ops/fp8.h"
#include "hrm/state/registry.h"
#include "nn/fp8_linears_cases.h"
#include "support/expect_error.h"

namespace hrm::nn {
namespace {

using namespace testing;  // NOLINT

TEST(Fp8Linears, GradientsOfBlocksAreThoseOfTheComputeDtype) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    for (const bool e5m2 : {false, true}) {
      for (const bool current : {false, true}) {
        check_fp8_blocks(at::kCPU, compute, {.e5m2 = e5m2, .current = current});
      }
      check_fp8_blocks(at::kCPU, compute, {.e5m2 = e5m2, .skip = "layers.1.*"});
      check_fp8_blocks(at::kCPU, compute, {.e5m2 = e5m2, .rows = true});
    }
  }
}

TEST(Fp8Linears, HalvesOfABlockAreTheirLayers) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    for (const bool current : {false, true}) {
      for (const bool qk_norm : {false, true}) check_fp8_halves(at::kCPU, compute, current, qk_norm);
    }
  }
}

TEST(Fp8Linears, WideLayersGiveTheSameBits) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    for (const bool current : {false, true}) check_wide_layers(at::kCPU, compute, current);
  }
}

// Without copies in the compute dtype: the same bits of training, warm-up and evaluation.
TEST(Fp8Linears, LayersThatCastTheirMastersGiveTheSameBits) {
  for (const Fp8LinearsOptions& options : {Fp8LinearsOptions{}, {.current = true}, {.rows = true}}) {
    Fp8Blocks copies(at::kCPU, at::kBFloat16), casts(at::kCPU, at::kBFloat16);
    std::vector<Linear*> layers;
    for (const NamedLinear& layer : casts.linears()) layers.push_back(layer.linear);
    casts.parameters.cast_when_read(layers);
    EXPECT_TRUE(layers[0]->casts_weight());
    EXPECT_EQ(layers[0]->compute_weight().scalar_type(), at::kBFloat16);
    for (const Parameter& p : casts.parameters.all()) {
      EXPECT_TRUE(p.compute.is_same(p.master)) << p.name << ": the optimizer would write a copy";
    }
    const at::Tensor x = copies.input();
    Fp8Linears a(copies.linears(), options), b(casts.linears(), options);
    const auto expect_same = [&](const Fp8Blocks::Result& got, const Fp8Blocks::Result& want, const std::string& what) {
      EXPECT_TRUE(at::equal(got.y, want.y)) << what;
      EXPECT_TRUE(at::equal(got.grad_x, want.grad_x)) << what;
      for (size_t i = 0; i < want.grads.size(); ++i) EXPECT_TRUE(at::equal(got.grads[i], want.grads[i])) << what << i;
    };
    for (const bool warm_up : {true, false, false}) {
      expect_same(fp8_step(casts, b, x, warm_up), fp8_step(copies, a, x, warm_up), warm_up ? "warm-up " : "step ");
      EXPECT_TRUE(at::equal(b.weight_slots(), a.weight_slots()));
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(at::equal(casts.forward(x), copies.forward(x))) << "evaluation";
      // As an optimizer would: masters alone change, and copies follow.
      for (Fp8Blocks* model : {&copies, &casts}) {
        for (const Parameter& p : model->parameters.all()) at::Tensor(p.master).mul_(1.01);
        model->parameters.refresh_compute();
      }
    }
    // Also recorded passes that are not in 8 bits.
    { Fp8Linears unused(casts.linears(), options); }
    copies.parameters.zero_grad();
    casts.parameters.zero_grad();
    { Fp8Linears unused(copies.linears(), options); }
    expect_same(casts.pass(x), copies.pass(x), "off ");
  }
  Fp8Blocks wide;
  wide.parameters.cast_when_read({wide.linears()[0].linear});
  EXPECT_FALSE(wide.linears()[0].linear->casts_weight()) << "it reads its master as it is";
}

TEST(Fp8Linears, SkippedLayersStayAsTheyAre) {
  Fp8Blocks model;
  const std::vector<NamedLinear> all = model.linears();
  ASSERT_EQ(all.size(), 8u);
  EXPECT_EQ(without_skipped(all, "").size(), 8u);
  EXPECT_EQ(without_skipped(all, "layers.0.*").size(), 4u);
  const auto left = without_skipped(all, "layers.0.*, *.down_proj");
  ASSERT_EQ(left.size(), 3u);
  EXPECT_EQ(left[0].name, "layers.1.self_attn.qkv_proj");
  test::expect_error(ExitCode::usage, {"'*.up_proj'", "layers.1.mlp.gate_up_proj"},
                     [&] { without_skipped(all, "layers.0.*,*.up_proj"); });
  test::expect_error(ExitCode::usage, {"no linear layer is left"}, [&] { Fp8Linears(all, {.skip = "*"}); });

  const at::Tensor x = model.input();
  const Fp8Blocks::Result want = model.pass(x);
  Fp8Linears fp8(all, {.skip = "layers.1.*"});
  EXPECT_EQ(fp8.x_slots().size(0), 4);
  const Fp8Blocks::Result got = fp8_step(model, fp8, x);
  EXPECT_GT(relative_error(got.y, want.y), 0.001);
  // The second block multiplies as before: only what it reads is rounded.
  EXPECT_FALSE(all[4].linear->needs_forward());
  EXPECT_TRUE(all[0].linear->needs_forward());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(all[0].linear->needs_forward()) << "without gradient nothing is in 8 bits";
}

TEST(Fp8Linears, SizesAreMultiplesOf16) {
  Linear odd(32, 24, at::kCPU);
  test::expect_error(ExitCode::usage, {"block.up", "32 by 24", "precision.fp8_skip=block.up"}, [&] {
    Fp8Linears({{"block.up", &odd}}, {});
  });
  test::expect_error(ExitCode::usage, {"no linear layer"}, [] { Fp8Linears({}, {}); });
}

// The warm-up computes as without, and leaves a history from which the first step in 8 bits has its scales.
TEST(Fp8Linears, WarmUpGathersTheMaxima) {
  Fp8Blocks model;
  const at::Tensor x = model.input();
  const Fp8Blocks::Result want = model.pass(x);
  Fp8Linears fp8(model.linears(), {.history = 4, .margin = 1});
  const Fp8Blocks::Result got = fp8_step(model, fp8, x, /*warm_up=*/true);
  EXPECT_EQ(fp8.mode(), Fp8Mode::gather);
  EXPECT_LT(relative_error(got.y, want.y), 1e-6);
  for (size_t i = 0; i < want.grads.size(); ++i) EXPECT_LT(relative_error(got.grads[i], want.grads[i]), 1e-5);
  EXPECT_EQ(fp8.steps(), 1);
  const at::Tensor gathered = fp8.x_slots().select(1, 0).clone();
  const at::Tensor gradients = fp8.gradient_slots().select(1, 0).clone();
  // What the first layer reads is a norm of x.
  const at::Tensor normed = x / (x.square().mean(-1, true) + 1e-6).sqrt();
  EXPECT_NEAR(gathered[0].item<double>(), 224 / normed.abs().max().item<double>(), 1e-3);
  EXPECT_TRUE((gradients > 1000).all().item<bool>()) << gradients;
  // Without the warm-up the first step finds the same scales by itself.
  Fp8Blocks other;
  Fp8Linears alone(other.linears(), {.history = 4, .margin = 1});
  fp8_step(other, alone, x);
  EXPECT_TRUE(at::allclose(alone.x_slots().select(1, 0), gathered, 0.1, 0));
  EXPECT_TRUE(at::allclose(alone.gradient_slots().select(1, 0), gradients, 0.15, 0));
  fp8_step(model, fp8, x);
  EXPECT_EQ(fp8.mode(), Fp8Mode::delayed);
}

TEST(Fp8Linears, ScalesStayAsTheyAreInsideAStep) {
  Fp8Blocks one, three;
  const at::Tensor x = one.input();
  Fp8Linears a(one.linears(), {}), b(three.linears(), {});
  fp8_step(one, a, x);
  fp8_step(three, b, x, false, 3);
  const Fp8Blocks::Result once = fp8_step(one, a, x), thrice = fp8_step(three, b, x, false, 3);
  EXPECT_TRUE(at::equal(once.y, thrice.y));
  EXPECT_TRUE(at::equal(a.x_slots(), b.x_slots()));
  EXPECT_TRUE(at::equal(a.gradient_slots(), b.gradient_slots()));
  for (size_t i = 0; i < once.grads.size(); ++i) {
    EXPECT_LT(relative_error(thrice.grads[i], 3 * once.grads[i]), 1e-6) << one.parameters.all()[i].name;
  }
}

TEST(Fp8Linears, RecomputedBlocksGiveTheSameBits) {
  Fp8Blocks plain, again(at::kCPU, at::kFloat, /*recompute=*/true);
  const at::Tensor x = plain.input();
  for (const auto& [current, by_rows] : {std::pair{false, false}, std::pair{true, false}, std::pair{false, true}}) {
    const Fp8LinearsOptions options{.current = current, .rows = by_rows};
    Fp8Linears a(plain.linears(), options), b(again.linears(), options);
    for (int step = 0; step < 2; ++step) {
      const Fp8Blocks::Result want = fp8_step(plain, a, x), got = fp8_step(again, b, x);
      EXPECT_TRUE(at::equal(got.grad_x, want.grad_x)) << current << by_rows;
      for (size_t i = 0; i < want.grads.size(); ++i)
        EXPECT_TRUE(at::equal(got.grads[i], want.grads[i])) << current << by_rows;
    }
    EXPECT_TRUE(at::equal(a.maxima(), b.maxima()));
    EXPECT_TRUE(at::equal(a.gradient_slots(), b.gradient_slots()));
  }
}

// A token a million times as large as the others takes nothing from them, if each has a scale of its own.
TEST(Fp8Linears, RowsHaveScalesOfTheirOwn) {
  Fp8Blocks model;
  Linear& linear = *model.linears()[0].linear;
  at::Tensor x = model.input();
  x[0][3].mul_(1e6);
  const at::Tensor want = at::linear(x, linear.weight().detach());
  const auto others_of = [](const at::Tensor& y) { return y.detach()[1]; };
  for (const bool by_rows : {true, false}) {
    Fp8Linears fp8({model.linears()[0]}, {.current = true, .rows = by_rows});
    fp8.begin_step(false);
    fp8.quantize_weights();
    EXPECT_EQ(fp8.mode(), by_rows ? Fp8Mode::rows : Fp8Mode::current);
    const at::Tensor input = x.clone().requires_grad_();
    const double error = relative_error(others_of(linear.forward(input)), others_of(want));
    if (by_rows) {
      EXPECT_LT(error, 0.05);
    } else {
      EXPECT_GT(error, 0.9);
    }
  }
}

// A jump of the activations saturates one step; the history follows it, and forgets it again.
TEST(Fp8Linears, AJumpOfTheActivationsSaturatesOneStep) {
  Fp8Blocks model;
  std::vector<NamedLinear> one{model.linears()[0]};
  Linear& linear = *one[0].linear;
  Fp8Linears fp8(one, {.history = 2});
  const at::Tensor x = model.input();
  const auto step = [&](double factor) {
    fp8.begin_step(false);
    fp8.quantize_weights();
    const at::Tensor input = (x * factor).requires_grad_();
    const at::Tensor y = linear.forward(input);
    y.backward(at::ones_like(y));
    fp8.update_scales();
    fp8.count_step();
    const double wrong = relative_error(y.detach(), at::linear(x * factor, linear.weight().detach()));
    EXPECT_TRUE(at::isfinite(y).all().item<bool>());
    return std::pair{wrong, fp8.values()[3].item<double>()};
  };
  step(1);
  EXPECT_LT(step(1).first, 0.06);
  EXPECT_EQ(fp8.values()[3].item<double>(), 0);
  const auto [wrong, saturated] = step(1e4);
  EXPECT_GT(wrong, 0.9);
  EXPECT_EQ(saturated, 1);
  EXPECT_LT(step(1e4).first, 0.06);
  EXPECT_EQ(fp8.values()[3].item<double>(), 0);
  step(1);
  step(1);
  EXPECT_LT(step(1).first, 0.06) << "the jump is no longer in the history";
}

TEST(Fp8Linears, ZerosAndWhatIsNotFiniteLeaveTheHistorySound) {
  for (const bool current : {false, true}) {
    Fp8Blocks model;
    const at::Tensor x = model.input();
    const Fp8Blocks::Result want = model.pass(x);
    Fp8Linears fp8(model.linears(), {.history = 2, .current = current});
    fp8_step(model, fp8, x);
    fp8_step(model, fp8, x);
    const at::Tensor slots = fp8.x_slots().clone(), gradients = fp8.gradient_slots().clone();
    const Fp8Blocks::Result nothing = fp8_step(model, fp8, at::zeros_like(x));
    EXPECT_TRUE(at::isfinite(nothing.y).all().item<bool>());
    for (const double bad : {NAN, INFINITY}) {
      at::Tensor broken = x.clone();
      broken[0][3][5].fill_(bad);
      const Fp8Blocks::Result lost = fp8_step(model, fp8, broken);
      EXPECT_FALSE(at::isfinite(lost.grads[0]).all().item<bool>()) << "the step has to be skipped";
      EXPECT_TRUE(at::isfinite(fp8.x_slots()).all().item<bool>());
      EXPECT_TRUE(at::isfinite(fp8.gradient_slots()).all().item<bool>());
      EXPECT_TRUE(at::isfinite(fp8.values()).all().item<bool>());
    }
    fp8_step(model, fp8, x);
    fp8_step(model, fp8, x);
    const Fp8Blocks::Result after = fp8_step(model, fp8, x);
    EXPECT_LT(relative_error(after.grad_x, want.grad_x), 0.08);
    EXPECT_TRUE(at::allclose(fp8.x_slots(), slots, 1e-2));
    EXPECT_TRUE(at::allclose(fp8.gradient_slots(), gradients, 0.1));
  }
}

TEST(Fp8Linears, FrozenWeightsHaveNoGradient) {
  Fp8Blocks model;
  Linear frozen(128, 64, at::kCPU);
  {
    const at::NoGradGuard no_grad;
    frozen.weight().normal_();
  }
  at::Tensor(frozen.weight()).set_requires_grad(false);
  Fp8Linears fp8({{"frozen", &frozen}}, {});
  fp8.begin_step(false);
  fp8.quantize_weights();
  const at::Tensor x = model.input().requires_grad_();
  const at::Tensor y = frozen.forward(x);
  y.backward(at::ones_like(y));
  EXPECT_LT(relative_error(x.grad()[0][0], frozen.weight().sum(0)), 0.06);
  EXPECT_FALSE(frozen.weight().grad().defined());
}

// Of each layer: what its slots hold, and zeros of one that is left out.
TEST(Fp8Linears, TellsScalesAndMaximaOfLayers) {
  Fp8Blocks model;
  const std::vector<NamedLinear> all = model.linears();
  Fp8Linears fp8(all, {.skip = "layers.1.self_attn.*"});
  const at::Tensor x = model.input() * 3;
  for (int step = 0; step < 2; ++step) {
    model.parameters.zero_grad();
    fp8.begin_step(false);
    fp8.quantize_weights();
    const at::Tensor in = x.detach().clone().requires_grad_();
    const at::Tensor out = model.forward(in);
    out.backward(at::ones_like(out) / 100);
    const at::Tensor largest = fp8.maxima().clone();
    fp8.update_scales();
    fp8.count_step();
    const at::Tensor got = fp8.layer_values();
    ASSERT_EQ(got.sizes(), at::IntArrayRef({6, 8}));
    const auto used = static_cast<int64_t>(fp8.layers().size());
    ASSERT_EQ(used, 6);
    int64_t place = 0;
    for (int64_t i = 0; i < 8; ++i) {
      const NamedLinear& layer = all[static_cast<size_t>(i)];
      if (layer.name.starts_with("layers.1.self_attn.")) {
        EXPECT_TRUE(got.select(1, i).eq(0).all().item<bool>()) << layer.name;
        continue;
      }
      const auto value = [&](int64_t row) { return got[row][i].item<double>(); };
      EXPECT_EQ(value(0), fp8.x_slots()[place][0].item<double>()) << layer.name;
      EXPECT_EQ(value(1), largest[place].item<double>()) << layer.name;
      EXPECT_EQ(value(2), fp8.gradient_slots()[place][0].item<double>()) << layer.name;
      EXPECT_EQ(value(3), largest[used + place].item<double>()) << layer.name;
      EXPECT_EQ(value(4), fp8.weight_slots()[place][0].item<double>()) << layer.name;
      EXPECT_EQ(value(5), layer.linear->compute_weight().abs().max().item<double>()) << layer.name;
      ++place;
    }
  }
}

// Of a step whose input is larger than the history says, the share of what each layer has clamped.
TEST(Fp8Linears, TellsHowManyValuesWereClamped) {
  Fp8Blocks model;
  const std::vector<NamedLinear> all = model.linears();
  const at::Tensor x = model.input();
  const size_t first_norm = 0, gate_up = 2;
  ASSERT_EQ(all[first_norm].name, "layers.0.self_attn.qkv_proj");
  ASSERT_EQ(all[gate_up].name, "layers.0.mlp.gate_up_proj");
  Fp8Linears fp8(all, {.skip = "layers.1.self_attn.*"});
  EXPECT_TRUE(at::equal(fp8.saturated(), at::zeros({2, 8}, at::kDouble)));
  // A pass before update_scales() forgets it.
  const auto run = [&](const at::Tensor& input, const at::Tensor& grad) {
    model.parameters.zero_grad();
    fp8.begin_step(false);
    fp8.quantize_weights();
    const at::Tensor in = input.detach().clone().requires_grad_();
    model.forward(in).backward(grad);
    const at::Tensor got = fp8.saturated();
    fp8.update_scales();
    fp8.count_step();
    EXPECT_TRUE((fp8.saturated() == 0).all().item<bool>());
    return got;
  };
  const at::Tensor grad = at::ones_like(x) / 1000;
  EXPECT_TRUE((run(x, grad) == 0).all().item<bool>()) << "scales of the tensors themselves";
  const at::Tensor same = run(x, grad);
  EXPECT_LT(same.max().item<double>(), 0.01) << same;

  // The gradient of the last layer is that of the block.
  at::Tensor large = grad.clone();
  large.narrow(1, 0, 3).mul_(100);  // of 24 positions
  const at::Tensor after = run(x, large);
  ASSERT_EQ(all[7].name, "layers.1.mlp.down_proj");
  EXPECT_DOUBLE_EQ(after[1][7].item<double>(), 3.0 / Fp8Blocks::kLength);
  EXPECT_TRUE((after.select(0, 1).narrow(0, 0, 4) > 0).all().item<bool>()) << after;
  for (const int skipped : {4, 5}) EXPECT_EQ(after[1][skipped].item<double>(), 0);
  EXPECT_LT(after[0].max().item<double>(), 0.01) << "inputs are as before";

  // Norms keep their inputs in range, but not what comes from attention.
  {
    const at::NoGradGuard no_grad;
    at::Tensor(all[gate_up].linear->weight()).mul_(30);
    model.parameters.refresh_compute();
  }
  const at::Tensor wide = run(x, grad);
  EXPECT_GT(wide[0][3].item<double>(), 0.05) << "the input of down_proj is larger";
  EXPECT_LT(wide[0][gate_up].item<double>(), 0.01);
}

struct Copied : StateVisitor {
  void tensor(const std::string& name, at::Tensor& tensor, StateRole, const StatePart&) override {
    if (load) {
      tensor.copy_(tensors.at(name));
    } else {
      tensors[name] = tensor.clone();
    }
  }
  void integer(const std::string& name, int64_t& value) override {
    load ? value = integers.at(name) : integers[name] = value;
  }
  void real(const std::string&, double&) override {}
  bool load = false;
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, int64_t> integers;
};

TEST(Fp8Linears, AnotherFormForgetsTheScales) {
  Fp8Blocks model;
  const at::Tensor x = model.input();
  Copied state;
  at::Tensor slots;
  {
    Fp8Linears fp8(model.linears(), {.e5m2 = true});
    fp8_step(model, fp8, x);
    fp8_step(model, fp8, x);
    slots = fp8.x_slots().clone();
    fp8.visit_state(state);
  }
  EXPECT_FALSE(model.linears()[0].linear->needs_forward()) << "as before, when the state is gone";
  state.load = true;
  const auto resumed = [&](const Fp8LinearsOptions& options, const auto& check) {
    Fp8Linears fp8(model.linears(), options);
    fp8.visit_state(state);
    fp8.begin_step(false);
    check(fp8);
  };
  resumed({.e5m2 = true}, [&](Fp8Linears& fp8) {
    EXPECT_EQ(fp8.steps(), 2);
    EXPECT_EQ(fp8.mode(), Fp8Mode::delayed);
    EXPECT_TRUE(at::equal(fp8.x_slots(), slots));
  });
  for (const Fp8LinearsOptions& other : {Fp8LinearsOptions{.e5m2 = false}, Fp8LinearsOptions{.skip = "layers.0.*"}}) {
    resumed(other, [&](Fp8Linears& fp8) {
      EXPECT_EQ(fp8.steps(), 0);
      EXPECT_EQ(fp8.mode(), Fp8Mode::current);
      EXPECT_TRUE((fp8.x_slots().select(1, 0) == 1).all().item<bool>());
      const double largest = other.e5m2 ? ops::kFp8MaxE5m2 : ops::kFp8Max;
      EXPECT_TRUE((fp8.gradient_slots().select(1, 3) == largest).all().item<bool>());
    });
  }
}

}  // namespace
}  // namespace hrm::nn

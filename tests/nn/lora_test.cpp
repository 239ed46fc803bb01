#include "hrm/nn/lora.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hrm/base/error.h"
#include "hrm/nn/parameter.h"
#include "hrm/ops/dropout.h"
#include "support/expect_error.h"
#include "support/random.h"

namespace hrm::nn {
namespace {

using test::expect_error;
using test::numbers;

// Two layers, one of which stands for three projections.
struct TwoLayers : torch::nn::Module, HasAdaptableLinears {
  TwoLayers() {
    first = register_module("first", std::make_shared<Linear>(6, 10, at::kCPU));
    second = register_module("second", std::make_shared<Linear>(10, 6, at::kCPU));
  }
  std::vector<AdaptableLinear> adaptable_linears() override {
    return {{first, {{"a", 4}, {"b", 1}, {"c", 5}}}, {second, {{"d", 6}}}};
  }
  at::Tensor forward(const at::Tensor& x) { return second->forward_add(first->forward(x), x); }

  std::shared_ptr<Linear> first, second;
};

struct Adapted {
  std::shared_ptr<TwoLayers> model = std::make_shared<TwoLayers>();
  std::unique_ptr<LoraSet> set;
  std::vector<LoraAdapter::Pair> pairs;
  ParameterSet parameters;

  explicit Adapted(const LoraOptions& options, at::ScalarType dtype = at::kFloat) {
    set = std::make_unique<LoraSet>(*model, options, at::kCPU);
    pairs = set->pairs();
    init_parameters(*model, 3);
    const at::NoGradGuard no_grad;
    uint64_t seed = 20;
    for (const LoraAdapter::Pair& pair : pairs) pair.B.copy_(numbers(pair.B.sizes(), ++seed));
    parameters.build(*model, dtype);
  }
};

LoraOptions options_of(std::vector<std::string> targets, double dropout = 0) {
  return {.rank = 2, .alpha = 6, .dropout = dropout, .targets = std::move(targets), .seed = 5};
}

// What the two layers give by the formula, from leaves that autograd differentiates.
struct Plain {
  std::vector<at::Tensor> A, B;  // of a, c, d
  at::Tensor x, y;

  Plain(Adapted& adapted, const at::Tensor& input, const at::Tensor& kept_first, const at::Tensor& kept_second) {
    for (const LoraAdapter::Pair& p : adapted.pairs) {
      A.push_back(p.A.clone().requires_grad_());
      B.push_back(p.B.clone().requires_grad_());
    }
    x = input.clone().requires_grad_();
    const auto lora = [&](size_t i, const at::Tensor& in) { return 3 * at::linear(at::linear(in, A[i]), B[i]); };
    const at::Tensor in = x * kept_first;
    const at::Tensor h = at::linear(x, adapted.model->first->weight()) +
                         at::cat({lora(0, in), at::zeros({x.size(0), 1}), lora(1, in)}, 1);
    y = x + at::linear(h, adapted.model->second->weight()) + lora(2, h * kept_second);
  }
};

void expect_near(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  EXPECT_TRUE(at::allclose(got, want, 1e-5, 1e-5)) << what << ": " << (got - want).abs().max().item<float>();
}

void expect_gradients(Adapted& adapted, const at::Tensor& x, const at::Tensor& y, Plain& plain) {
  const at::Tensor grad = numbers(y.sizes(), 9);
  y.backward(grad);
  plain.y.backward(grad);
  expect_near(x.grad(), plain.x.grad(), "x");
  const auto of = [&](const std::string& name) {
    for (const auto& item : adapted.model->named_parameters()) {
      if (item.key() == name) return item.value().grad();
    }
    return at::Tensor();
  };
  expect_near(of("first.lora.lora_A.weight"), at::cat({plain.A[0].grad(), plain.A[1].grad()}), "A of a and c");
  expect_near(of("first.lora.lora_B.weight"), at::cat({plain.B[0].grad(), plain.B[1].grad()}), "B of a and c");
  expect_near(of("second.lora.lora_A.weight"), plain.A[2].grad(), "A of d");
  expect_near(of("second.lora.lora_B.weight"), plain.B[2].grad(), "B of d");
  EXPECT_FALSE(of("first.weight").defined());
}

TEST(Lora, IsTheFormula) {
  Adapted adapted(options_of({"a", "c", "d"}));
  EXPECT_EQ(adapted.pairs.size(), 3u);
  EXPECT_EQ(adapted.parameters.count(), 4 * 6 + 9 * 2 + 2 * 10 + 6 * 2);
  const at::Tensor x = numbers({7, 6}, 1).requires_grad_();
  Plain plain(adapted, x.detach(), at::ones({7, 6}), at::ones({7, 10}));
  const at::Tensor y = adapted.model->forward(x);
  expect_near(y, plain.y, "y");
  expect_gradients(adapted, x, y, plain);
}

// The masks that the op draws, again; none without gradients, nor when it is switched off; others at another step.
TEST(Lora, DropsOfTheAdaptersInputAlone) {
  Adapted adapted(options_of({"a", "c", "d"}, 0.4));
  const at::Tensor x = numbers({7, 6}, 1).requires_grad_();
  const at::Tensor eval = [&] {
    const at::NoGradGuard no_grad;
    return adapted.model->forward(x.detach());
  }();
  Plain whole(adapted, x.detach(), at::ones({7, 6}), at::ones({7, 10}));
  expect_near(eval, whole.y, "without gradients");
  const at::Tensor dropped = adapted.model->forward(x).detach();
  EXPECT_FALSE(at::allclose(dropped, eval, 1e-3, 1e-3));
  EXPECT_TRUE(at::equal(dropped, adapted.model->forward(x).detach())) << "the same step draws the same mask";
  adapted.set->step().fill_(1);
  EXPECT_FALSE(at::equal(dropped, adapted.model->forward(x).detach()));
  adapted.set->set_dropout(false);
  expect_near(adapted.model->forward(x).detach(), whole.y, "switched off");
}

// Against autograd with masks measured from the layer itself: with A and B of ones its output is a sum over what is
// kept of one-hot rows.
TEST(Lora, GradientsGoThroughTheSameMask) {
  const auto linear = std::make_shared<TwoLayers>();
  LoraSet set(*linear, {.rank = 1, .alpha = 1, .dropout = 0.5, .targets = {"d"}, .seed = 2}, at::kCPU);
  init_parameters(*linear, 3);
  ParameterSet parameters;
  parameters.build(*linear, at::kFloat);
  {
    const at::NoGradGuard no_grad;
    for (const LoraAdapter::Pair& pair : set.pairs()) {
      pair.A.fill_(1);
      pair.B.fill_(1);
    }
  }
  // One row with a 1 at each place in turn: what the adapter adds is that place's factor, 0 or 2. The mask belongs to
  // the place in the tensor, so each row shows one element of it.
  const at::Tensor rows = at::eye(10).requires_grad_();
  const at::Tensor y = linear->second->forward(rows);
  const at::Tensor added = (y - at::linear(rows, linear->second->weight())).detach();
  const at::Tensor factors = added.select(1, 0);
  EXPECT_TRUE(at::logical_or(factors.sub(2).abs().lt(1e-5), factors.abs().lt(1e-5)).all().item<bool>()) << factors;
  y.sum().backward();
  // d sum / d rows[i][i] = column sum of W + 6 outputs * factor.
  const at::Tensor want = linear->second->weight().sum(0) + 6 * factors;
  EXPECT_TRUE(at::allclose(rows.grad().diagonal(), want, 1e-5, 1e-5));
  // d sum / d A[0][i] = 6 * factor_i, as only row i has a 1 at i; B's: sum over rows of the factors.
  const auto named = linear->named_parameters();
  EXPECT_TRUE(at::allclose(named["second.lora.lora_A.weight"].grad()[0], 6 * factors, 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(named["second.lora.lora_B.weight"].grad(), factors.sum().expand({6, 1}), 1e-5, 1e-5));
}

TEST(Lora, MergedAndOff) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Adapted adapted(options_of({"a", "d"}), dtype);
    const at::NoGradGuard no_grad;
    const at::Tensor x = numbers({5, 6}, 1).to(dtype);
    const at::Tensor beside = adapted.model->forward(x).to(at::kFloat);
    const auto close = [&](const at::Tensor& t, const at::Tensor& want) {
      const double limit = dtype == at::kFloat ? 1e-5 : 0x1p-6 * want.abs().max().item<double>();
      return (t.to(at::kFloat) - want).abs().max().item<double>() <= limit;
    };
    expect_error(ExitCode::unexpected, {"merged"}, [&] { adapted.set->set_mode(LoraMode::merged); });
    adapted.set->merge();
    const void* place = nullptr;
    {
      const WithLoraMode merged(*adapted.set, LoraMode::merged);
      EXPECT_EQ(adapted.model->first->adapter(), nullptr);
      EXPECT_TRUE(close(adapted.model->forward(x), beside)) << dtype;
      place = adapted.model->first->compute_weight().data_ptr();
    }
    EXPECT_NE(adapted.model->first->compute_weight().data_ptr(), place);
    {
      const WithLoraMode off(*adapted.set, LoraMode::off);
      const at::Tensor h = at::linear(x, adapted.model->first->base_weight());
      EXPECT_TRUE(
          close(adapted.model->forward(x), (x + at::linear(h, adapted.model->second->base_weight())).to(at::kFloat)));
      EXPECT_FALSE(close(adapted.model->forward(x), beside));
    }
    // After an update the merged weights are old until the next merge(), which keeps their place.
    adapted.pairs.back().B.mul_(2);
    adapted.parameters.refresh_compute();
    const at::Tensor later = adapted.model->forward(x).to(at::kFloat);
    adapted.set->merge();
    const WithLoraMode merged(*adapted.set, LoraMode::merged);
    EXPECT_TRUE(close(adapted.model->forward(x), later));
    EXPECT_EQ(adapted.model->first->compute_weight().data_ptr(), place);
  }
}

// Beside frozen weights that are kept in the compute dtype alone.
TEST(Lora, FrozenWeightsNeedNoFloat32) {
  const auto model = std::make_shared<TwoLayers>();
  LoraSet set(*model, options_of({"a"}), at::kCPU);
  init_parameters(*model, 3);
  const at::Tensor before = model->first->weight().detach().clone();
  keep_frozen_as(*model, at::kBFloat16);
  ParameterSet parameters;
  parameters.build(*model, at::kBFloat16);
  EXPECT_EQ(model->first->weight().scalar_type(), at::kBFloat16);
  EXPECT_TRUE(model->first->compute_weight().is_same(model->first->weight()));
  EXPECT_TRUE(at::equal(model->first->weight(), before.to(at::kBFloat16)));
  EXPECT_EQ(parameters.all().size(), 2u);
  const at::Tensor y = model->forward(numbers({4, 6}, 1).to(at::kBFloat16));
  y.sum().backward();
  EXPECT_GT(parameters.flat_grad().abs().sum().item<float>(), 0);
}

LoraOptions dora_of(double dropout = 0) {
  LoraOptions options = options_of({"a", "c", "d"}, dropout);
  options.dora = true;
  return options;
}

at::Tensor parameter_of(const torch::nn::Module& model, const std::string& name) {
  return model.named_parameters()[name];
}

// g and the layer's output by the formula, of the parts that have adapters; rows between them are W's alone.
struct PlainDora {
  struct Part {
    int64_t row, rows;
    at::Tensor A, B, m;
  };
  static at::Tensor forward(const at::Tensor& x, const at::Tensor& dropped, const at::Tensor& W,
                            const std::vector<Part>& parts) {
    at::Tensor y = at::linear(x, W);
    for (const Part& p : parts) {
      const at::Tensor w = W.narrow(0, p.row, p.rows);
      const at::Tensor norm = (w + 3 * at::matmul(p.B, p.A)).norm(2, 1).detach(), g = p.m / norm;
      const at::Tensor part =
          at::linear(x - dropped, w) + g * (at::linear(dropped, w) + 3 * at::linear(at::linear(dropped, p.A), p.B));
      y = at::cat({y.narrow(1, 0, p.row), part, y.narrow(1, p.row + p.rows, y.size(1) - p.row - p.rows)}, 1);
    }
    return y;
  }
};

// Outputs and all gradients, without dropout and with a mask that is measured, against autograd.
TEST(Dora, IsTheFormula) {
  for (const double dropout : {0.0, 0.4}) {
    Adapted adapted(dora_of(dropout));
    const at::Tensor magnitude = parameter_of(*adapted.model, "first.lora.lora_magnitude_vector");
    const at::Tensor other = parameter_of(*adapted.model, "second.lora.lora_magnitude_vector");
    {
      const at::NoGradGuard no_grad;
      magnitude.copy_(numbers({9}, 41).abs() + 0.5);
      other.copy_(numbers({6}, 42).abs() + 0.5);
    }
    std::vector<at::Tensor> leaves;
    const auto leaf = [&](const at::Tensor& t) { return leaves.emplace_back(t.detach().clone().requires_grad_()); };
    std::vector<PlainDora::Part> parts;
    for (const auto& [i, row] : {std::pair{0, 0}, {1, 5}, {2, 0}}) {
      const LoraAdapter::Pair& p = adapted.pairs[i];
      parts.push_back({row, p.B.size(0), leaf(p.A), leaf(p.B), leaf(p.magnitude)});
    }
    const at::Tensor x = numbers({7, 6}, 1).requires_grad_(), plain_x = leaf(x);
    const auto drop = [&](const at::Tensor& t, const Linear& layer) {
      return dropout == 0 ? t : ops::dropout(t, adapted.set->step(), dropout, layer.adapter()->seed());
    };
    const at::Tensor h = PlainDora::forward(plain_x, drop(plain_x, *adapted.model->first),
                                            adapted.model->first->weight(), {parts[0], parts[1]});
    const at::Tensor want =
        plain_x + PlainDora::forward(h, drop(h, *adapted.model->second), adapted.model->second->weight(), {parts[2]});
    const at::Tensor y = adapted.model->forward(x);
    expect_near(y, want, "y");
    const at::Tensor grad = numbers(y.sizes(), 9);
    y.backward(grad);
    want.backward(grad);
    expect_near(x.grad(), plain_x.grad(), "x");
    const auto of = [&](const std::string& name) { return parameter_of(*adapted.model, name).grad(); };
    expect_near(of("first.lora.lora_A.weight"), at::cat({parts[0].A.grad(), parts[1].A.grad()}), "A of a and c");
    expect_near(of("first.lora.lora_B.weight"), at::cat({parts[0].B.grad(), parts[1].B.grad()}), "B of a and c");
    expect_near(magnitude.grad(), at::cat({parts[0].m.grad(), parts[1].m.grad()}), "m of a and c");
    expect_near(of("second.lora.lora_A.weight"), parts[2].A.grad(), "A of d");
    expect_near(other.grad(), parts[2].m.grad(), "m of d");
  }
}

TEST(Dora, BeginsAsNothingAndMerges) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto model = std::make_shared<TwoLayers>();
    LoraSet set(*model, dora_of(), at::kCPU);
    init_parameters(*model, 3);
    set.initialise(7);
    const at::NoGradGuard no_grad;
    const at::Tensor W = model->first->weight().clone(), V = model->second->weight().clone();
    const at::Tensor x = numbers({5, 6}, 1);
    ParameterSet parameters;
    parameters.build(*model, dtype);
    const double limit = dtype == at::kFloat ? 1e-5 : 0x1p-4;
    const auto differs = [&](const at::Tensor& a, const at::Tensor& b) {
      return (a.to(at::kFloat) - b.to(at::kFloat)).abs().max().item<double>();
    };
    EXPECT_LE(differs(model->forward(x.to(dtype)), x + at::linear(at::linear(x, W), V)), limit);
    uint64_t seed = 20;
    for (const LoraAdapter::Pair& pair : set.pairs()) {
      pair.B.copy_(numbers(pair.B.sizes(), ++seed));
      pair.magnitude.mul_(1.5);
    }
    parameters.refresh_compute();
    const at::Tensor beside = model->forward(x.to(dtype));
    set.merge();
    const WithLoraMode merged(set, LoraMode::merged);
    EXPECT_LE(differs(model->forward(x.to(dtype)), beside), limit * (1 + beside.abs().max().item<double>()));
    EXPECT_TRUE(at::equal(set.merged_weight("first.weight")[4], model->first->base_weight()[4])) << "b has no adapter";
  }
}

TEST(Lora, TargetsAsPeftMatchesThem) {
  const auto names = [](const LoraOptions& options) {
    const auto model = std::make_shared<TwoLayers>();
    std::vector<std::string> all;
    for (const LoraAdapter::Pair& pair : LoraSet(*model, options, at::kCPU).pairs()) all.push_back(pair.name);
    return all;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(options_of({"all-linear"})), (Names{"a", "b", "c", "d"}));
  LoraOptions options = options_of({});
  options.wants = [](const std::string& name) { return name == "b" || name == "d"; };
  EXPECT_EQ(names(options), (Names{"b", "d"}));
  options = options_of({"a", "other"});
  options.origin = "x/adapter_config.json";
  EXPECT_EQ(names(options), Names{"a"}) << "of a file: what no layer is called is skipped";
  options.targets = {"other"};
  expect_error(ExitCode::checkpoint, {"x/adapter_config.json: no layer of the model matches the targets"},
               [&] { names(options); });
}

TEST(Lora, ModulesThatTrainWhole) {
  LoraOptions options = options_of({"a", "d"});
  options.modules_to_save = {"second"};
  const auto model = std::make_shared<TwoLayers>();
  // `d` is the one part of the module `second`, whose adapter would train beside the whole.
  expect_error(ExitCode::usage, {"'second' cannot be trained in full, because it has an adapter"},
               [&] { LoraSet(*model, options, at::kCPU); });
  options.targets = {"a"};
  const auto whole = std::make_shared<TwoLayers>();
  const LoraSet set(*whole, options, at::kCPU);
  ASSERT_EQ(set.saved().size(), 1U);
  EXPECT_EQ(set.saved()[0].first, "second.weight");
  EXPECT_TRUE(whole->second->weight().requires_grad());
  EXPECT_FALSE(whole->first->weight().requires_grad());
  options.modules_to_save = {"first"};
  expect_error(ExitCode::usage, {"no module that can be trained in full is called 'first'"},
               [&] { LoraSet(*std::make_shared<TwoLayers>(), options, at::kCPU); });
}

TEST(Lora, ScalesAndStarts) {
  EXPECT_DOUBLE_EQ(lora_scale({.rank = 16, .alpha = 16}), 1);
  EXPECT_DOUBLE_EQ(lora_scale({.rank = 16, .alpha = 8}), 0.5);
  EXPECT_DOUBLE_EQ(lora_scale({.rank = 16, .alpha = 8, .rslora = true}), 2);
  const auto model = std::make_shared<TwoLayers>();
  LoraSet set(*model, options_of({"a", "c"}), at::kCPU);
  init_parameters(*model, 3);
  const std::vector<LoraAdapter::Pair> pairs = set.pairs();
  ASSERT_EQ(pairs.size(), 2u);
  EXPECT_EQ(pairs[0].name, "a");
  for (const LoraAdapter::Pair& pair : pairs) {
    EXPECT_EQ(pair.B.abs().max().item<float>(), 0);
    const double bound = 1 / std::sqrt(6.0);
    EXPECT_LE(pair.A.abs().max().item<double>(), bound);
    EXPECT_GT(pair.A.abs().max().item<double>(), 0.6 * bound);
  }
  EXPECT_FALSE(at::equal(pairs[0].A, pairs[1].A));
}

TEST(Lora, NamesWhatDoesNotFit) {
  const auto make = [](LoraOptions options) { LoraSet(*std::make_shared<TwoLayers>(), options, at::kCPU); };
  expect_error(ExitCode::usage, {"no layer is called 'q_proj'", "a, b, c, d"}, [&] {
    make(options_of({"a", "q_proj"}));
  });
  expect_error(ExitCode::usage, {"rank of at least 1", "not 0"}, [&] { make({.rank = 0, .targets = {"a"}}); });
  expect_error(ExitCode::usage, {"dropout in [0, 1)"}, [&] { make(options_of({"a"}, 1)); });
  expect_error(ExitCode::usage, {"no layer of the model matches the targets"}, [&] { make(options_of({})); });
}

}  // namespace
}  // namespace hrm::nn

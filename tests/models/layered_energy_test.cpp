#include "hrm/models/layered_energy.h"

#include <ATen/Parallel.h>
#include <torch/optim/adam.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "hrm/formats/npy.h"
#include "models/layered_energy_cases.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace hrm::models {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr int64_t kFeatures = 12, kClasses = 5;

LayeredEnergyOptions energy_sizes(std::vector<int64_t> hidden, int64_t free_steps = 64) {
  return {.inputs = kFeatures, .hidden = std::move(hidden), .classes = kClasses, .free_steps = free_steps};
}

LabelledRows batch_rows(int64_t rows, uint64_t seed, at::ScalarType dtype) {
  return clustered_rows(rows, kFeatures, kClasses, seed, dtype);
}

std::vector<at::Tensor> random_states(const std::vector<int64_t>& hidden, int64_t rows, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  std::vector<at::Tensor> states;
  for (const int64_t width : hidden) states.push_back(at::randn({rows, width}, generator, at::kDouble) * 2);
  return states;
}

TEST(LayeredEnergy, NamesAndOrderOfParameters) {
  const auto model = small_energy(energy_sizes({7, 6}), at::kFloat);
  std::vector<std::string> names;
  for (const auto& item : model->named_parameters()) names.push_back(item.key());
  EXPECT_EQ(names, (std::vector<std::string>{"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
                                             "readout.weight", "readout.bias"}));
  const LabelledRows rows = batch_rows(9, 1, at::kFloat);
  const Contrast contrast = model->contrast(rows.inputs, rows.labels, {});
  ASSERT_EQ(contrast.gradients.size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(contrast.gradients[i].sizes(), model->parameters()[i].sizes()) << names[i];
  }
}

// The closed forms against autograd of the energy, for states that are no equilibrium.
TEST(LayeredEnergy, StatisticsAreDerivativesOfTheEnergy) {
  for (const std::vector<int64_t>& hidden : {std::vector<int64_t>{7}, {7, 6}, {3, 8, 5}}) {
    const auto model = small_energy(energy_sizes(hidden), at::kDouble);
    const LabelledRows rows = batch_rows(9, 2, at::kDouble);
    const std::vector<at::Tensor> plus = random_states(hidden, 9, 4), minus = random_states(hidden, 9, 5);
    std::vector<at::Tensor> parameters = model->parameters();
    parameters.resize(2 * hidden.size());  // the readout is no part of the energy
    const auto derivative = [&](const std::vector<at::Tensor>& states) {
      return torch::autograd::grad({model->energy(rows.inputs, states)}, parameters);
    };
    const auto want = derivative(plus), other = derivative(minus);
    const auto got = model->statistics_difference(rows.inputs, plus, minus);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LT((got[i] - (want[i] - other[i])).abs().max().item<double>(), 1e-10) << hidden.size() << " " << i;
    }
  }
}

// A relaxed state is stationary in E + strength C, by autograd.
TEST(LayeredEnergy, RelaxesToAStationaryPoint) {
  for (const std::vector<int64_t>& hidden : {std::vector<int64_t>{7}, {7, 6}, {3, 8, 5}}) {
    const auto model = small_energy(energy_sizes(hidden), at::kDouble);
    const LabelledRows rows = batch_rows(9, 2, at::kDouble);
    const auto free = model->relax_free(rows.inputs);
    EXPECT_LT(free.residual.item<double>(), 1e-6);
    for (const double strength : {0.0, 0.3, -0.3}) {
      const at::Tensor beta = at::tensor(std::abs(strength), at::kDouble);
      std::vector<at::Tensor> states =
          model->relax_nudged(rows.inputs, rows.labels, free.states, at::full({9, 1}, strength, at::kDouble), beta, 100)
              .states;
      for (at::Tensor& state : states) state = state.detach().requires_grad_();
      const at::Tensor total = model->energy(rows.inputs, states) + strength * model->cost(states, rows.labels);
      for (const at::Tensor& slope : torch::autograd::grad({total}, states)) {
        EXPECT_LT(slope.abs().max().item<double>(), 1e-8) << hidden.size() << " " << strength;
      }
    }
  }
}

// Within 64 steps also where the couplings are as large as project_() lets them be.
TEST(LayeredEnergy, SettlesAtTheLimitOfTheCoupling) {
  for (const std::vector<int64_t>& hidden : {std::vector<int64_t>{64, 64}, {32, 64, 48}}) {
    const auto model = small_energy(energy_sizes(hidden), at::kFloat);
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) parameter.mul_(10);
    }
    model->project_();
    const LabelledRows rows = batch_rows(64, 3, at::kFloat);
    EXPECT_LT(model->relax_free(rows.inputs).residual.item<float>(), 1e-3) << hidden.size();
    EXPECT_LT(model->contrast(rows.inputs, rows.labels, {}).residual[1].item<float>(), 1e-3) << hidden.size();
  }
}

TEST(LayeredEnergy, ProjectionBoundsTheCoupling) {
  for (const size_t layers : {2, 3}) {
    const auto model = small_energy(energy_sizes(std::vector<int64_t>(layers, 20)), at::kDouble);
    std::vector<at::Tensor> weights;
    for (auto& item : model->named_parameters()) {
      const bool coupling = item.key() == "layers.1.weight" || item.key() == "layers.2.weight";
      if (coupling) weights.push_back(item.value());
    }
    ASSERT_EQ(weights.size(), layers - 1);
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> before{weights[0].clone()};
    model->project_();
    EXPECT_TRUE(at::equal(before[0], weights[0])) << "a small coupling is left alone";
    for (at::Tensor& weight : weights) weight.mul_(100);
    model->project_();
    for (const at::Tensor& weight : weights) {
      const double norm = at::linalg_matrix_norm(weight, 2).item<double>(), limit = 0.95 * 4 / (layers - 1);
      EXPECT_LE(norm, limit);
      EXPECT_GE(norm, 0.7 * limit) << "the bound is near the norm";
    }
  }
}

TEST(LayeredEnergy, ProjectionObeysTheSkipFlag) {
  const auto model = small_energy(energy_sizes({8, 7}), at::kFloat);
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.mul_(100);
    model->named_parameters()["layers.1.weight"].view(-1)[0] = std::numeric_limits<float>::quiet_NaN();
  }
  std::vector<at::Tensor> before;
  for (const at::Tensor& parameter : model->parameters()) before.push_back(parameter.detach().clone());
  model->project_(at::ones({}));
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::allclose(model->parameters()[i], before[i], 0, 0, /*equal_nan=*/true)) << i;
  }
  {
    const at::NoGradGuard no_grad;
    model->named_parameters()["layers.1.weight"].view(-1)[0] = 0;
  }
  EXPECT_GT(model->contraction().item<float>(), 1);
  model->project_(at::zeros({}));
  EXPECT_LE(model->contraction().item<float>(), 0.95f + 1e-5f);
}

// The readout's gradient is the same with and without nudged phases.
TEST(LayeredEnergy, TheReadoutAlone) {
  const auto model = small_energy(energy_sizes({8, 7}), at::kFloat);
  const LabelledRows rows = batch_rows(9, 1, at::kFloat);
  const Contrast whole = model->contrast(rows.inputs, rows.labels, {}),
                 alone = model->readout_only(rows.inputs, rows.labels);
  ASSERT_EQ(alone.gradients.size(), whole.gradients.size());
  for (size_t i = 0; i < 4; ++i) EXPECT_FALSE(alone.gradients[i].defined());
  for (size_t i = 4; i < 6; ++i) EXPECT_TRUE(at::equal(alone.gradients[i], whole.gradients[i]));
  EXPECT_TRUE(at::equal(alone.loss, whole.loss));
  EXPECT_TRUE(at::equal(alone.correct, whole.correct));
}

TEST(LayeredEnergy, LogitsWithoutFeedback) {
  const LabelledRows rows = batch_rows(9, 1, at::kFloat);
  for (const std::vector<int64_t>& hidden : {std::vector<int64_t>{8}, {8, 7}}) {
    const auto model = small_energy(energy_sizes(hidden), at::kFloat);
    const at::Tensor logits = model->feed_forward_logits(rows.inputs);
    EXPECT_EQ(at::allclose(logits, model->logits(rows.inputs), 1e-6, 1e-7), hidden.size() == 1);
    const at::Tensor loss = -logits.log_softmax(-1).gather(1, rows.labels.unsqueeze(1)).mean();
    EXPECT_FLOAT_EQ(loss.item<float>(), model->feed_forward_backprop(rows.inputs, rows.labels).loss.item<float>());
  }
}

// Gradient of both phases beside backprop of the same network, at the start and after 100 steps of training by it.
TEST(LayeredEnergy, GradientIsThatOfBackprop) {
  at::set_num_threads(1);
  for (const std::vector<int64_t>& hidden : {std::vector<int64_t>{24}, {24, 20}}) {
    const auto model = small_energy(energy_sizes(hidden), at::kFloat);
    const LabelledRows held = batch_rows(128, 7, at::kFloat);
    const auto expect_same = [&](const char* when) {
      const Contrast got = model->contrast(held.inputs, held.labels, {.beta = 0.1, .share = kNoLimit});
      const Contrast want = model->backprop(held.inputs, held.labels);
      EXPECT_FLOAT_EQ(got.beta.item<float>(), 0.1f);
      EXPECT_FLOAT_EQ(got.loss.item<float>(), want.loss.item<float>());
      EXPECT_EQ(got.correct.item<int64_t>(), want.correct.item<int64_t>());
      const auto names = model->named_parameters().keys();
      for (size_t i = 0; i < names.size(); ++i) {
        EXPECT_GE(cosine(got.gradients[i], want.gradients[i]), 0.99) << when << " " << names[i];
        const float ratio = (got.gradients[i].norm() / want.gradients[i].norm()).item<float>();
        EXPECT_NEAR(ratio, 1, 0.05) << when << " " << names[i];
      }
      return got.loss.item<float>();
    };
    const float before = expect_same("at the start");
    torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
    for (uint64_t step = 0; step < 100; ++step) {
      const LabelledRows rows = batch_rows(64, 100 + step, at::kFloat);
      optimizer.zero_grad();
      model->add_gradients(model->contrast(rows.inputs, rows.labels, {}));
      optimizer.step();
      model->project_();
    }
    EXPECT_LT(expect_same("after 100 steps"), 0.7 * before);
  }
}

// Without a coupling there is no feedback, and the network is the usual one.
TEST(LayeredEnergy, OneHiddenLayerIsTheFeedForwardNetwork) {
  const auto model = small_energy(energy_sizes({9}), at::kDouble);
  const LabelledRows rows = batch_rows(32, 7, at::kDouble);
  const Contrast relaxed = model->backprop(rows.inputs, rows.labels);
  const Contrast plain = model->feed_forward_backprop(rows.inputs, rows.labels);
  for (size_t i = 0; i < plain.gradients.size(); ++i) {
    EXPECT_LT((relaxed.gradients[i] - plain.gradients[i]).abs().max().item<double>(), 1e-12);
  }
  const auto deep = small_energy(energy_sizes({9, 8}), at::kDouble);
  EXPECT_GT((deep->backprop(rows.inputs, rows.labels).gradients[0] -
             deep->feed_forward_backprop(rows.inputs, rows.labels).gradients[0])
                .abs()
                .max()
                .item<double>(),
            1e-6)
      << "feedback matters with two";
}

// Error of the quotient over beta: second order if symmetric, first order if one-sided.
TEST(LayeredEnergy, ErrorFallsWithBetaAsItShould) {
  const auto model = small_energy(energy_sizes({10, 8}, /*free_steps=*/150), at::kDouble);
  const LabelledRows rows = batch_rows(32, 7, at::kDouble);
  const Contrast want = model->backprop(rows.inputs, rows.labels);
  const auto flat = [](const Contrast& contrast) {
    // Without the readout, whose gradient is exact.
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i + 2 < contrast.gradients.size(); ++i) parts.push_back(contrast.gradients[i].reshape(-1));
    return at::cat(parts);
  };
  const auto error = [&](double beta, bool one_sided) {
    const Nudging nudging{.beta = beta, .share = kNoLimit, .one_sided = one_sided};
    const at::Tensor got = flat(model->contrast(rows.inputs, rows.labels, nudging));
    return ((got - flat(want)).norm() / flat(want).norm()).item<double>();
  };
  for (const double beta : {0.1, 0.2, 0.4}) {
    EXPECT_NEAR(std::log2(error(2 * beta, false) / error(beta, false)), 2, 0.2) << beta;
    EXPECT_NEAR(std::log2(error(beta / 5, true) / error(beta / 10, true)), 1, 0.2) << beta;
  }
  EXPECT_LT(error(0.1, false), 1e-3);
}

TEST(LayeredEnergy, BetaFollowsTheReadout) {
  const auto model = small_energy(energy_sizes({10}), at::kDouble);
  EXPECT_EQ(model->beta_of({.beta = 0.1}).item<double>(), 0.1);
  at::Tensor readout = model->named_parameters()["readout.weight"];
  {
    const at::NoGradGuard no_grad;
    readout.mul_(100);
  }
  const double norm = at::linalg_matrix_norm(readout.detach(), 2).item<double>();
  const double beta = model->beta_of({.beta = 0.1, .share = 0.2}).item<double>();
  EXPECT_LE(beta, 0.2 * 8 / (norm * norm));
  EXPECT_GE(beta, 0.5 * 0.2 * 8 / (norm * norm));
}

// Nothing of a step is recorded, although the parameters require gradients and gradient mode is on.
TEST(LayeredEnergy, UsesNoAutograd) {
  const auto model = small_energy(energy_sizes({7, 6}), at::kFloat);
  const LabelledRows rows = batch_rows(9, 1, at::kFloat);
  ASSERT_TRUE(at::GradMode::is_enabled());
  const Contrast contrast = model->contrast(rows.inputs, rows.labels, {});
  model->add_gradients(contrast);
  model->project_();
  for (const at::Tensor& tensor : contrast.gradients) EXPECT_FALSE(tensor.requires_grad());
  for (const at::Tensor& tensor : {contrast.loss, contrast.beta, contrast.residual}) {
    EXPECT_FALSE(tensor.requires_grad());
  }
  EXPECT_FALSE(model->logits(rows.inputs).requires_grad());
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.is_leaf() && parameter.requires_grad());
    EXPECT_EQ(parameter.grad_fn(), nullptr);
    EXPECT_TRUE(parameter.grad().defined());
  }
  // They are added to what is there.
  model->add_gradients(contrast);
  EXPECT_TRUE(at::allclose(model->parameters()[0].grad(), 2 * contrast.gradients[0]));
}

TEST(LayeredEnergy, RowsDoNotSeeEachOther) {
  const auto model = small_energy(energy_sizes({7, 6}), at::kDouble);
  const LabelledRows rows = batch_rows(10, 1, at::kDouble);
  const at::Tensor whole = model->logits(rows.inputs);
  EXPECT_TRUE(at::allclose(whole.narrow(0, 3, 4), model->logits(rows.inputs.narrow(0, 3, 4)), 0, 1e-12));
  // Gradients are means: those of two halves average to that of the whole.
  const Contrast all = model->contrast(rows.inputs, rows.labels, {});
  const auto half = [&](int64_t begin) {
    return model->contrast(rows.inputs.narrow(0, begin, 5), rows.labels.narrow(0, begin, 5), {}).gradients;
  };
  const auto first = half(0), second = half(5);
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(at::allclose((first[i] + second[i]) / 2, all.gradients[i], 1e-9, 1e-12));
  }
}

TEST(LayeredEnergy, Refusals) {
  const auto expect_usage = [](const std::vector<std::string>& parts, const LayeredEnergyOptions& options) {
    test::expect_error(ExitCode::usage, parts, [&] { LayeredEnergy(options, at::kCPU); });
  };
  expect_usage({"needs a hidden layer"}, energy_sizes({}));
  expect_usage({"width 0"}, energy_sizes({4, 0}));
  expect_usage({"at least 1", "12, 5 and 0"}, energy_sizes({4}, 0));
  LayeredEnergyOptions options = energy_sizes({4});
  options.momentum = 1;
  expect_usage({"momentum 1"}, options);
  options.momentum = 0;
  options.margin = 1;
  expect_usage({"margin 1"}, options);
}

// The shipped digits, minus the mean of the training rows over their deviation.
struct Digits {
  LabelledRows train, test;
};

LabelledRows read_digits(const char* split) {
  const std::filesystem::path folder = std::filesystem::path(test::source_dir()) / "data/digits" / split;
  const NpyFile inputs(folder / "inputs.npy"), labels(folder / "labels.npy");
  const auto tensor = [](const NpyFile& file) {
    const ArrayView& array = file.array();
    return at::from_blob(const_cast<std::byte*>(array.bytes.data()), array.shape, at::kByte).clone();
  };
  return {tensor(inputs).to(at::kFloat), tensor(labels).to(at::kLong)};
}

Digits digits() {
  Digits result{read_digits("train"), read_digits("test")};
  const at::Tensor mean = result.train.inputs.mean(0), deviation = (result.train.inputs - mean).square().mean().sqrt();
  for (LabelledRows* rows : {&result.train, &result.test}) rows->inputs = (rows->inputs - mean) / deviation;
  return result;
}

// Accuracy on the test rows, in percent, of a network that learns by `gradient_of`.
template <class F>
double trained_accuracy(const Digits& data, const F& gradient_of) {
  const auto model = small_energy({.inputs = 64, .hidden = {64, 64}, .classes = 10, .free_steps = 24}, at::kFloat);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(2e-2).betas({0.9, 0.99}));
  auto generator = at::detail::createCPUGenerator(0);
  constexpr int kEpochs = 12;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const double decay = 0.5 * (1 + std::cos(M_PI * epoch / kEpochs));
    static_cast<torch::optim::AdamOptions&>(optimizer.param_groups()[0].options()).lr(2e-2 * decay);
    const at::Tensor order = at::randperm(data.train.labels.size(0), generator, at::kLong);
    for (const at::Tensor& rows : order.split(64)) {
      optimizer.zero_grad();
      model->add_gradients(
          gradient_of(*model, data.train.inputs.index_select(0, rows), data.train.labels.index_select(0, rows)));
      optimizer.step();
      model->project_();
    }
  }
  return 100 * model->logits(data.test.inputs).argmax(1).eq(data.test.labels).to(at::kFloat).mean().item<double>();
}

TEST(LayeredEnergy, LearnsDigitsAsBackpropDoes) {
  at::set_num_threads(1);
  const Digits data = digits();
  const double contrastive =
      trained_accuracy(data, [](const LayeredEnergy& model, const auto& inputs, const auto& labels) {
        return model.contrast(inputs, labels, {});
      });
  const double backprop = trained_accuracy(data, [](const LayeredEnergy& model, const auto& inputs,
                                                    const auto& labels) { return model.backprop(inputs, labels); });
  const double readout = trained_accuracy(data, [](const LayeredEnergy& model, const auto& inputs, const auto& labels) {
    Contrast contrast = model.contrast(inputs, labels, {.steps = 1});
    for (size_t i = 0; i + 2 < contrast.gradients.size(); ++i) contrast.gradients[i].zero_();
    return contrast;
  });
  RecordProperty("contrastive", std::to_string(contrastive));
  RecordProperty("backprop", std::to_string(backprop));
  RecordProperty("readout", std::to_string(readout));
  EXPECT_NEAR(contrastive, backprop, 1);
  EXPECT_GE(contrastive, 89.5);
  EXPECT_LT(readout, contrastive - 4) << "the hidden layers have learned";
}

}  // namespace
}  // namespace hrm::models

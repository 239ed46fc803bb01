#include "hrm/objectives/contrastive.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>

#include "objectives/contrastive_gradient_cases.h"
#include "objectives/geometric_memory_cases.h"

namespace hrm::objectives {
namespace {

// Bounds of this program hold with the products that every CPU has (tests/support/main.cpp).
[[maybe_unused]] const int kCompatibleProducts = setenv("MKL_CBWR", "COMPATIBLE", /*overwrite=*/0);

using test::cosine;
using test::GeometricMemory;
using test::GeometricMemoryOptions;
using test::make_memory;
using test::random_normal;
using test::small_memory;

struct MemoryBatch {
  MemoryBatch(const GeometricMemoryOptions& options, int64_t rows, at::ScalarType dtype, uint64_t seed = 7)
      : inputs(random_normal({rows, options.features}, seed, dtype)),
        targets(random_normal({rows}, seed + 1, at::kDouble).abs().mul(1e4).to(at::kLong).remainder(options.classes)) {}

  at::Tensor inputs, targets;
};

// Memories of every kind.
std::vector<std::pair<std::string, GeometricMemoryOptions>> kinds() {
  std::vector<std::pair<std::string, GeometricMemoryOptions>> all{{"plain", small_memory()}};
  all.emplace_back("hidden units", small_memory());
  all.back().second.hidden = 9;
  all.emplace_back("low rank", small_memory());
  all.back().second.low_rank = 3;
  all.emplace_back("hidden units and low rank", small_memory());
  all.back().second.hidden = 4;
  all.back().second.low_rank = 2;
  all.emplace_back("one resilience", small_memory());
  all.back().second.resilience = models::Resilience::constitutive;
  all.emplace_back("no rotor", small_memory());
  all.back().second.angles = 0;
  all.emplace_back("odd coordinates", small_memory());
  all.back().second.coords = 5;
  all.back().second.angles = 3;
  all.emplace_back("metric of blocks", small_memory());
  all.back().second.metric = models::MetricForm::blocks;
  all.emplace_back("resilience of the curvature", small_memory());
  all.back().second.resilience = models::Resilience::curvature;
  all.emplace_back("rotor of the keys", small_memory());
  all.back().second.rotor = models::RotorSource::keys;
  return all;
}

// And of several kinds at once.
std::vector<std::pair<std::string, GeometricMemoryOptions>> more_kinds() {
  auto all = kinds();
  all.emplace_back("metric of blocks, low rank and hidden units", small_memory());
  all.back().second.metric = models::MetricForm::blocks;
  all.back().second.low_rank = 2;
  all.back().second.hidden = 4;
  all.emplace_back("metric of blocks without rotor, curvature", small_memory());
  all.back().second.metric = models::MetricForm::blocks;
  all.back().second.angles = 0;
  all.back().second.resilience = models::Resilience::curvature;
  all.emplace_back("metric of blocks, rotor of the keys", small_memory());
  all.back().second.metric = models::MetricForm::blocks;
  all.back().second.rotor = models::RotorSource::keys;
  return all;
}

// Closed form against autograd of the written-out energy, at a state that is no equilibrium.
TEST(GeometricMemory, GradientsOfTheEnergy) {
  for (const auto& [name, options] : more_kinds()) {
    SCOPED_TRACE(name);
    const auto memory = make_memory(options, at::kDouble);
    const MemoryBatch batch(options, 13, at::kDouble);
    const at::Tensor scales = random_normal({13}, 20, at::kDouble);
    GeometricMemory::Window window;
    GeometricMemory::Drive drive;
    ops::GeometricState state;
    models::Gradients ours;
    at::Tensor chart;
    {
      const at::NoGradGuard no_grad;
      window = memory->prepare(/*half_values=*/false);
      drive = memory->drive(window, batch.inputs);
      state = memory->free_phase(window, drive, 3);
      ours = memory->energy_gradients(window, drive, state, scales);
      chart = memory->chart(window, drive.drive + state.offset);
    }
    const at::Tensor energy = test::plain_energy(*memory, batch.inputs, chart, state.o, state.h, scales);
    torch::autograd::variable_list parameters;
    for (const auto& parameter : memory->named_parameters()) parameters.push_back(parameter.value());
    const auto want = torch::autograd::grad({energy}, parameters, {}, std::nullopt, false, /*allow_unused=*/true);
    for (size_t i = 0; i < want.size(); ++i) {
      const std::string& parameter = memory->parameter_names()[i];
      if (memory->parameters()[i].numel() == 0) continue;
      if (!want[i].defined()) {
        EXPECT_TRUE(parameter.starts_with("readout")) << parameter;
        EXPECT_FALSE(ours[i].defined()) << parameter;
        continue;
      }
      ASSERT_TRUE(ours[i].defined()) << parameter;
      ASSERT_EQ(ours[i].sizes(), want[i].sizes()) << parameter;
      const double size = want[i].abs().max().item<double>();
      EXPECT_LT((ours[i] - want[i]).abs().max().item<double>(), 1e-10 * size + 1e-13) << parameter;
    }
  }
}

// Per parameter, and all together.
std::map<std::string, double> cosines(const GeometricMemory& memory, const MemoryBatch& batch,
                                      const ContrastiveOptions& options, double beta_share, double* error = nullptr) {
  const at::NoGradGuard no_grad;
  GeometricMemory::Window window = memory.prepare(/*half_values=*/false);
  at::Tensor beta = window.rates.select(0, 2);
  beta.copy_(beta * (beta_share / memory.options().beta_share));
  const auto ours = contrastive_gradients(memory, window, batch.inputs, batch.targets, options).gradients;
  ContrastiveOptions exact = options;
  exact.rule = ContrastiveRule::backprop;
  const auto want = contrastive_gradients(memory, window, batch.inputs, batch.targets, exact).gradients;
  std::map<std::string, double> result;
  std::vector<at::Tensor> all_ours, all_want;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!want[i].defined() || want[i].numel() == 0) continue;
    // A metric whose axes are all at the limit does not notice a rotation.
    if (want[i].norm().item<double>() < 1e-5) continue;
    result[memory.parameter_names()[i]] = cosine(ours[i], want[i]);
    if (memory.parameter_names()[i].starts_with("readout")) continue;
    all_ours.push_back(ours[i].flatten());
    all_want.push_back(want[i].flatten());
  }
  const at::Tensor a = at::cat(all_ours), b = at::cat(all_want);
  result["all"] = cosine(a, b);
  if (error != nullptr) *error = ((a - b).norm() / b.norm()).item<double>();
  return result;
}

GeometricMemoryOptions uncapped(GeometricMemoryOptions options) {
  options.beta_cap = 1e9;
  return options;
}

TEST(ContrastiveGradients, PointWhereBackpropDoes) {
  for (const auto& [name, options] : kinds()) {
    const bool damped = options.hidden > 0;
    for (const auto& [dtype, least] : {std::pair{at::kDouble, 0.9999}, std::pair{at::kFloat, 0.999}}) {
      GeometricMemoryOptions now = uncapped(options);
      now.momentum = damped ? 0.6 : 0;
      const auto memory = make_memory(now, dtype);
      const MemoryBatch batch(now, 64, dtype);
      const int64_t steps = damped ? 400 : 64;  // hidden units follow slowly
      for (const auto& [parameter, value] :
           cosines(*memory, batch, {.steps = steps, .nudge_steps = steps}, /*beta_share=*/0.1)) {
        EXPECT_GE(value, least) << name << ", " << dtype << ", " << parameter;
      }
    }
  }
}

// The symmetric quotient errs by O(beta^2), the one-sided by O(beta).
TEST(ContrastiveGradients, ErrorOverBeta) {
  const GeometricMemoryOptions options = uncapped(small_memory());
  const auto memory = make_memory(options, at::kDouble);
  const MemoryBatch batch(options, 32, at::kDouble);
  for (const auto& [rule, slope] :
       {std::pair{ContrastiveRule::symmetric, 2.0}, std::pair{ContrastiveRule::one_sided, 1.0}}) {
    const ContrastiveOptions how{.rule = rule, .steps = 400, .nudge_steps = 400};
    double large = 0, small = 0;
    cosines(*memory, batch, how, 0.08, &large);
    cosines(*memory, batch, how, 0.02, &small);
    EXPECT_NEAR(std::log(large / small) / std::log(4.0), slope, 0.2) << large << ' ' << small;
  }
}

// The bound that nudge_factors() rests on: no eigenvalue of the cost's Hessian is above min(1/2, 2 e).
TEST(NudgeFactors, FollowTheHessianOfTheCost) {
  const int64_t rows = 200, classes = 7;
  const at::Tensor logits = random_normal({rows, classes}, 3, at::kDouble) * 4;
  const at::Tensor targets = at::arange(rows).remainder(classes), most = at::full({}, 50, at::kDouble);
  const at::Tensor factors = nudge_factors(logits, targets, most), p = logits.softmax(-1);
  const at::Tensor hessian = at::diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1);
  const at::Tensor largest = std::get<0>(at::linalg_eigh(hessian)).select(1, -1);
  EXPECT_LE((largest * factors).max().item<double>(), 0.5 + 1e-12);
  EXPECT_GE(factors.min().item<double>(), 1);
  EXPECT_EQ(factors.max().item<double>(), 50) << "no row is nearly right";
  const at::Tensor wrong = p.gather(1, targets.unsqueeze(1)).squeeze(1).lt(0.75);
  EXPECT_GT(wrong.sum().item<int64_t>(), 10);
  EXPECT_TRUE(factors.masked_select(wrong).eq(1).all().item<bool>());
}

// Most rows are nearly right, as late in training: with one beta for all, float32 loses the gradient.
TEST(ContrastiveGradients, ABetaForEachRowKeepsFloat32Exact) {
  const GeometricMemoryOptions options = small_memory();
  const auto memory = make_memory(options, at::kDouble);
  MemoryBatch batch(options, 256, at::kDouble);
  const at::NoGradGuard no_grad;
  memory->named_parameters()["readout.weight"].mul_(200);
  const auto window = memory->prepare(false);
  batch.targets = memory->logits(memory->free_phase(window, memory->drive(window, batch.inputs), 64).o).argmax(-1);
  const auto exact =
      contrastive_gradients(*memory, window, batch.inputs, batch.targets, {.rule = ContrastiveRule::backprop});
  EXPECT_LT(exact.loss.item<double>(), 0.1);
  const auto single = test::copy_of(*memory, at::kCPU, at::kFloat);
  const auto error = [&](ContrastiveRule rule, bool per_row) {
    const auto ours = contrastive_gradients(*single, single->prepare(false), batch.inputs.to(at::kFloat), batch.targets,
                                            {.rule = rule, .beta_per_row = per_row});
    at::Tensor difference = at::zeros({}, at::kDouble), size = at::zeros({}, at::kDouble);
    for (size_t i = 0; i < ours.gradients.size(); ++i) {
      if (memory->parameter_names()[i].starts_with("readout") || !exact.gradients[i].defined()) continue;
      difference += (ours.gradients[i] - exact.gradients[i]).square().sum();
      size += exact.gradients[i].square().sum();
    }
    return (difference / size).sqrt().item<double>();
  };
  const double rows = error(ContrastiveRule::symmetric, true), one = error(ContrastiveRule::symmetric, false);
  EXPECT_LT(rows, 0.05);
  EXPECT_LT(2 * rows, one);
  EXPECT_LT(error(ContrastiveRule::one_sided, true), 0.2);
}

// The tests above notice a phase of the wrong sign, a nudge beyond the stable one, and phases that did not settle.
TEST(ContrastiveGradients, FailWhereTheRuleIsBroken) {
  const GeometricMemoryOptions options = uncapped(small_memory());
  const auto memory = make_memory(options, at::kDouble);
  const MemoryBatch batch(options, 32, at::kDouble);
  const at::NoGradGuard no_grad;
  const auto window = memory->prepare(false);
  const auto drive = memory->drive(window, batch.inputs);
  const auto free = memory->free_phase(window, drive, 64);
  const at::Tensor ones = at::ones({32}, at::kDouble);
  // Both phases nudged the same way.
  const auto plus = memory->nudged_phase(window, drive, free, batch.targets, ones, 64);
  const auto same = memory->nudged_phase(window, drive, free, batch.targets, -ones, 64);
  EXPECT_GT((plus.o - same.o).abs().max().item<double>(), 1e-4) << "the sign of a phase has no effect";
  // A nudge far beyond the stable one.
  EXPECT_LT(cosines(*memory, batch, {}, /*beta_share=*/4)["all"], 0.99) << "the bound of beta is not needed";
  // Too few steps.
  EXPECT_LT(cosines(*memory, batch, {.steps = 1, .nudge_steps = 1}, 0.1)["all"], 0.99) << "nothing has to settle";
}

TEST(ContrastiveGradients, NeedNoAutograd) {
  const GeometricMemoryOptions options = small_memory();
  const auto memory = make_memory(options, at::kFloat);
  const MemoryBatch batch(options, 8, at::kFloat);
  const at::NoGradGuard no_grad;
  const auto result = contrastive_gradients(*memory, memory->prepare(false), batch.inputs, batch.targets, {});
  for (const at::Tensor& gradient : result.gradients) {
    ASSERT_TRUE(gradient.defined());
    EXPECT_FALSE(gradient.requires_grad());
    EXPECT_EQ(gradient.grad_fn(), nullptr);
  }
  for (const auto& parameter : memory->named_parameters()) EXPECT_FALSE(parameter.value().grad().defined());
}

TEST(GeometricMemory, ProjectionBoundsTheContraction) {
  for (const auto& [name, options] : more_kinds()) {
    const auto memory = make_memory(options, at::kFloat);
    const at::NoGradGuard no_grad;
    for (const auto& parameter : memory->named_parameters()) {
      if (parameter.key() == "log_metric" || parameter.key() == "metric_blocks" || parameter.key() == "values" ||
          parameter.key() == "low_rank_vectors") {
        parameter.value().mul_(30);
      }
    }
    const auto before = memory->named_parameters()["values"].clone();
    memory->project(at::ones({}));
    EXPECT_TRUE(before.equal(memory->named_parameters()["values"])) << "skip";
    EXPECT_GT(memory->contraction(memory->prepare(false)).item<double>(), 1) << name;
    memory->project(at::zeros({}));
    EXPECT_LE(memory->contraction(memory->prepare(false)).item<double>(), options.margin * (1 + 1e-5)) << name;
    // What obeys keeps its bits.
    std::vector<at::Tensor> once;
    for (const at::Tensor& parameter : memory->parameters()) once.push_back(parameter.clone());
    memory->project({});
    for (size_t i = 0; i < once.size(); ++i) {
      EXPECT_LT((memory->parameters()[i] - once[i]).abs().sum().item<double>(), 1e-5)
          << name << ", " << memory->parameter_names()[i];
    }
  }
}

// The eigenvalues, of which the bound is made, are those of the metric itself; small ones are raised.
TEST(GeometricMemory, BlocksHaveTheirEigenvalues) {
  GeometricMemoryOptions options = small_memory();
  options.metric = models::MetricForm::blocks;
  const auto memory = make_memory(options, at::kDouble);
  const at::NoGradGuard no_grad;
  const at::Tensor blocks = memory->named_parameters()["metric_blocks"];
  blocks.copy_(random_normal(blocks.sizes(), 31, at::kDouble));
  const at::Tensor want = std::get<0>(at::linalg_eigh(memory->prepare(false).metric));
  EXPECT_LT((std::get<0>(memory->metric_eigenvalues().sort()) - want).abs().max().item<double>(), 1e-12);
  blocks.zero_();
  blocks.select(1, 0).fill_(-9);
  memory->project({});
  EXPECT_NEAR(memory->metric_eigenvalues().min().item<double>(), ops::kLeastMetric, 1e-9);
  GeometricMemoryOptions odd = options;
  odd.coords = 5;
  EXPECT_THROW(make_memory(odd, at::kDouble), c10::Error);
}

// In the planes of the last layer nothing of the keys' covariance is left, elsewhere there is less. A small change of
// the keys turns the axes a little.
TEST(GeometricMemory, DerivedRotorFollowsTheKeys) {
  GeometricMemoryOptions options = small_memory();
  options.coords = 4;
  options.angles = 2 * 6;
  options.rotor = models::RotorSource::keys;
  const auto memory = make_memory(options, at::kDouble);
  EXPECT_FALSE(memory->named_parameters().contains("angles")) << "the optimizer would move them";
  const at::NoGradGuard no_grad;
  const at::Tensor keys = memory->named_parameters()["keys"];
  keys.mul_(at::tensor({1.0, 3.0, 0.5, 2.0}, at::kDouble)).add_(keys.roll({1}, {1}) * 0.7);
  memory->project({});
  const at::Tensor q = ops::rotor_matrix(memory->angles(), 4);
  const at::Tensor turned = (keys - keys.mean(0)).matmul(q.t()), covariance = turned.t().matmul(turned) / keys.size(0);
  // Layer 5 turns planes (1, 2) and (3, 0).
  EXPECT_LT(covariance[1][2].abs().item<double>(), 1e-12);
  EXPECT_LT(covariance[3][0].abs().item<double>(), 1e-12);
  const auto off_diagonal = [](const at::Tensor& m) { return (m - m.diagonal().diag()).square().sum().item<double>(); };
  const at::Tensor plain = keys - keys.mean(0);
  EXPECT_LT(off_diagonal(covariance), 0.5 * off_diagonal(plain.t().matmul(plain) / keys.size(0)));
  keys.add_(random_normal(keys.sizes(), 5, at::kDouble) * 1e-6);
  const at::Tensor before = memory->angles().clone();
  memory->project(at::ones({}));
  EXPECT_TRUE(before.equal(memory->angles())) << "skip";
  memory->project({});
  EXPECT_LT((ops::rotor_matrix(memory->angles(), 4) - q).abs().max().item<double>(), 1e-3);
}

// The scalar rule moves metric and angles along fixed directions by one number, and nothing else but the readout.
TEST(ContrastiveGradients, OfTheScalarRuleAreOneNumber) {
  const GeometricMemoryOptions options = small_memory();
  const auto memory = make_memory(options, at::kDouble);
  const MemoryBatch batch(options, 16, at::kDouble);
  const at::NoGradGuard no_grad;
  const auto window = memory->prepare(false);
  const ContrastiveOptions how{.rule = ContrastiveRule::scalar};
  const auto result = contrastive_gradients(*memory, window, batch.inputs, batch.targets, how);
  std::map<std::string, at::Tensor> by_name;
  for (size_t i = 0; i < result.gradients.size(); ++i) {
    if (result.gradients[i].defined()) by_name[memory->parameter_names()[i]] = result.gradients[i];
  }
  ASSERT_EQ(by_name.size(), 4) << "metric, angles, and the readout's two";
  const auto exact = contrastive_gradients(*memory, window, batch.inputs, batch.targets, {});
  for (size_t i = 0; i < exact.gradients.size(); ++i) {
    const std::string& name = memory->parameter_names()[i];
    if (name.starts_with("readout")) {
      EXPECT_TRUE(by_name[name].equal(exact.gradients[i])) << name;
    }
  }
  // g moves by shares of one number, whose sum is 1.
  const at::Tensor g = memory->named_parameters()["log_metric"].exp();
  const double factor = -(window.cells.mean() * (result.speed_plus - result.speed) / window.rates[2]).item<double>();
  EXPECT_NEAR((by_name["log_metric"] * g).sum().item<double>() / factor, 1, 2e-2);
  EXPECT_LT(
      std::abs(cosine(by_name["log_metric"],
                      exact.gradients[static_cast<size_t>(
                          std::find(memory->parameter_names().begin(), memory->parameter_names().end(), "log_metric") -
                          memory->parameter_names().begin())])),
      0.99)
      << "it would be a gradient";
  GeometricMemoryOptions blocks = options;
  blocks.metric = models::MetricForm::blocks;
  const auto other = make_memory(blocks, at::kDouble);
  EXPECT_THROW(contrastive_gradients(*other, other->prepare(false), batch.inputs, batch.targets, how), c10::Error);
}

// Slots behind the filled ones may hold anything.
TEST(GeometricMemory, EmptySlotsAreNotRead) {
  GeometricMemoryOptions options = small_memory();
  const auto plain = make_memory(options, at::kFloat);
  options.episodes = 6;
  const auto memory = make_memory(options, at::kFloat);
  const MemoryBatch batch(options, 10, at::kFloat);
  const at::NoGradGuard no_grad;
  for (const auto& buffer : memory->named_buffers()) {
    if (buffer.key() == "ring_keys" || buffer.key() == "ring_values") buffer.value().fill_(NAN);
  }
  const auto want = contrastive_gradients(*plain, plain->prepare(false), batch.inputs, batch.targets, {});
  const auto got = contrastive_gradients(*memory, memory->prepare(false), batch.inputs, batch.targets, {});
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    const std::string& name = memory->parameter_names()[i];
    EXPECT_GT(cosine(got.gradients[i], want.gradients[i]), 0.999) << name;
  }
  memory->commit_episodes(memory->prepare(false), got.drive + got.free.offset, batch.targets, at::ones({}));
  EXPECT_EQ(memory->named_buffers()["filled"].item<int64_t>(), options.slots) << "skip";
  memory->commit_episodes(memory->prepare(false), got.drive + got.free.offset, batch.targets, at::zeros({}));
  EXPECT_EQ(memory->named_buffers()["filled"].item<int64_t>(), options.slots + 6);
  EXPECT_FALSE(memory->named_buffers()["ring_keys"].isnan().any().item<bool>()) << "10 rows fill 6 places";
}

}  // namespace
}  // namespace hrm::objectives

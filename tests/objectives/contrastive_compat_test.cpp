// The compat window against the original's, step by step; that dL knows nothing of the target; the rules without
// autograd.

#include "hrm/objectives/contrastive_compat.h"

#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "hrm/objectives/contrastive_rules.h"
#include "hrm/ops/geometry.h"
#include "objectives/compat_cases.h"

namespace hrm::objectives {
namespace {

using namespace compat_test;  // NOLINT

CompatSizes small_sizes() {
  return {.axes = 8, .angles = 6, .width = 16, .slots = 8, .field_x = 4, .field_y = 5, .field_dim = 4};
}

TEST(ContrastiveCompat, EqualsTheOriginalStepByStep) {
  CompatSettings settings;
  settings.steps = 12;
  expect_original(settings, small_sizes(), at::kCPU, 3, 4, "main");
  settings.commit = CompatCommit::guide;
  expect_original(settings, small_sizes(), at::kCPU, 3, 4, "guide");
  CompatSizes sizes = small_sizes();
  sizes.field_dim = sizes.axes;
  expect_original(settings, sizes, at::kCPU, 3, 2, "guide, n = D");
  settings.commit = CompatCommit::main;
  expect_original(settings, sizes, at::kCPU, 3, 2, "main, n = D");
  settings.nudge = false;
  expect_original(settings, sizes, at::kCPU, 3, 2, "main, n = D, no nudge");
}

// More rows than slots, a wrapped ring, a width below n, no angles, targets that are not shifted.
TEST(ContrastiveCompat, EqualsTheOriginalAtOddSizes) {
  CompatSettings settings;
  settings.steps = 5;
  CompatSizes sizes = small_sizes();
  sizes.slots = 7;
  expect_original(settings, sizes, at::kCPU, 9, 3, "more rows than slots");
  expect_original(settings, sizes, at::kCPU, 1, 5, "one row");
  sizes.width = 5;
  expect_original(settings, sizes, at::kCPU, 3, 3, "width below n");
  sizes.angles = 0;
  settings.shifted_target = false;
  expect_original(settings, sizes, at::kCPU, 3, 2, "no angles");
  sizes.axes = 5;
  sizes.angles = 7;
  expect_original(settings, sizes, at::kCPU, 3, 2, "odd n");
}

// The source of ones in the nudged phase, which main adds where n = D alone.
TEST(ContrastiveCompat, MetricBecomesASourceWhereItFits) {
  CompatSettings settings;
  settings.steps = 4;
  CompatSizes sizes = small_sizes();
  sizes.field_dim = sizes.axes;
  const auto imaginary_mean = [&](CompatCommit commit) {
    settings.commit = commit;
    const CompatProblem p = compat_problem(settings, sizes, at::kCPU);
    CompatWindow window(p.settings, p.state);
    const double before = p.state.field.select(-1, 1).mean().item<double>();
    window.run(window.encode(p.embedding, p.ids, p.mask), at::full({}, 0.01));
    return p.state.field.select(-1, 1).mean().item<double>() - before;
  };
  // The periodic Laplacian keeps the mean; four sources of ones move it by -4 dt / hbar.
  EXPECT_NEAR(imaginary_mean(CompatCommit::main), -4 * 0.005 / 0.1, 1e-5);
  EXPECT_GT(imaginary_mean(CompatCommit::guide), -0.1);
}

// The difference of the phases does not depend on the target: bit for bit the same without a nudge's length and with a
// hundred times the usual one, and equal to a formula of free queries.
TEST(ContrastiveCompat, DifferenceDoesNotDependOnTheTarget) {
  std::vector<std::vector<double>> seen;
  for (const double scale : {0.0, 0.1, 100.0}) {
    CompatSettings settings;
    settings.nudge_scale = scale;
    const CompatProblem p = compat_problem(settings, small_sizes(), at::kCPU);
    CompatWindow window(p.settings, p.state);
    std::vector<double> values;
    for (int i = 0; i < 4; ++i) {
      const CompatBatch batch = window.encode(p.embedding, at::remainder(p.ids + i, 20), p.mask);
      const at::Tensor q = batch.query.to(at::kDouble), g = p.state.g.to(at::kDouble).clone();
      const at::Tensor rotated = q.matmul(ops::rotor_matrix(p.state.theta.to(at::kDouble), 8).t());
      const auto length = [&](const at::Tensor& v) { return ((v * v * g).sum(1) + 1e-8).sqrt(); };
      const CompatResult result = window.run(batch, at::full({}, 0.01));
      const double r = result.free.resilience.item<double>();
      const double formula = r * (length(q) - length(rotated)).mean().item<double>();
      EXPECT_NEAR(result.update.dL.item<double>(), formula, 1e-4) << "scale " << scale << ", window " << i;
      values.push_back(result.update.dL.item<double>());
      EXPECT_EQ(result.nudge.abs().max().item<double>() > 0, scale > 0);
    }
    EXPECT_GT(std::abs(values[0]), 1e-3);
    seen.push_back(values);
  }
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
}

// Without angles, or with the unit metric, it is zero but for the history in the first window.
TEST(ContrastiveCompat, DifferenceIsZeroAtTheStart) {
  const CompatProblem p = compat_problem({}, small_sizes(), at::kCPU);
  p.state.theta.zero_();
  p.state.history.fill_(20);
  CompatWindow window(p.settings, p.state);
  const CompatResult result = window.run(window.encode(p.embedding, p.ids, p.mask), at::full({}, 0.01));
  EXPECT_EQ(result.update.dL.item<float>(), 0);
}

TEST(ContrastiveCompat, RetrievingAtTheLastStepAloneChangesNothing) {
  std::vector<CompatResult> results;
  for (const bool each : {true, false}) {
    CompatSettings settings;
    settings.retrieve_each_step = each;
    const CompatProblem p = compat_problem(settings, small_sizes(), at::kCPU);
    CompatWindow window(p.settings, p.state);
    for (int i = 0; i < 2; ++i)
      results.push_back(window.run(window.encode(p.embedding, p.ids, p.mask), at::full({}, 0.01)));
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::allclose(results[i].free.retrieved, results[i + 2].free.retrieved, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(results[i].nudged.retrieved, results[i + 2].nudged.retrieved, 1e-5, 1e-6));
    EXPECT_TRUE(at::equal(results[i].update.dL, results[i + 2].update.dL));
  }
}

TEST(ContrastiveCompat, UpdatesThatAreNotFiniteAreRejected) {
  const CompatProblem p = compat_problem({}, small_sizes(), at::kCPU);
  CompatWindow window(p.settings, p.state);
  const CompatBatch batch = window.encode(p.embedding, p.ids, p.mask);
  const CompatPhase free = window.free_phase(batch);
  CompatPhase broken = window.nudged_phase(batch, window.nudge(batch, free));
  EXPECT_TRUE(window.update(free, broken).accepted.item<bool>());
  broken.lior = at::full({}, std::numeric_limits<double>::infinity());
  const CompatUpdate update = window.update(free, broken);
  EXPECT_FALSE(update.accepted.item<bool>());
  const at::Tensor g = p.state.g.clone();
  window.apply(update, at::full({}, 0.01));
  EXPECT_TRUE(at::equal(g, p.state.g));
}

// A commit that is skipped leaves ring and counters, whatever the skip is but zero.
TEST(ContrastiveCompat, SkippedCommitsLeaveTheRing) {
  const CompatProblem p = compat_problem({}, small_sizes(), at::kCPU, 5);
  CompatWindow window(p.settings, p.state);
  const CompatBatch batch = window.encode(p.embedding, p.ids, p.mask);
  const CompatPhase free = window.free_phase(batch);
  window.commit(batch, free);
  const CompatState before = copy_state(window.state(), at::kFloat);
  for (const double skip : {1.0, std::numeric_limits<double>::quiet_NaN()}) {
    window.commit(free.velocity + 1, batch.state + 1, at::full({}, skip));
    EXPECT_TRUE(at::equal(window.state().bank_coord, before.bank_coord));
    EXPECT_TRUE(at::equal(window.state().bank_state, before.bank_state));
    EXPECT_EQ(window.state().bank_next.item<int64_t>(), 5);
    EXPECT_EQ(window.state().bank_filled.item<int64_t>(), 5);
  }
  window.commit(free.velocity + 1, batch.state + 1, at::zeros({}));
  EXPECT_TRUE(at::equal(window.state().bank_coord[5], free.velocity[0] + 1));
  EXPECT_TRUE(at::equal(window.state().bank_coord[1], free.velocity[4] + 1));
  EXPECT_EQ(window.state().bank_next.item<int64_t>(), 2);
  EXPECT_EQ(window.state().bank_filled.item<int64_t>(), 8);
}

TEST(ContrastiveCompat, NoAutograd) {
  CompatProblem p = compat_problem({}, small_sizes(), at::kCPU);
  p.state.g.requires_grad_();
  p.state.theta.requires_grad_();
  p.embedding.requires_grad_();
  CompatWindow window(p.settings, p.state);
  const CompatBatch batch = window.encode(p.embedding, p.ids, p.mask);
  const CompatResult result = window.run(batch, at::full({}, 0.01));
  for (const at::Tensor& t : {batch.query, batch.states, batch.target, result.nudge, result.free.lior,
                              result.free.retrieved, result.nudged.lior, result.update.dL, result.update.g_grad,
                              result.update.theta_grad, window.state().field, window.state().bank_coord}) {
    EXPECT_EQ(t.grad_fn(), nullptr);
    EXPECT_FALSE(t.requires_grad());
  }
}

TEST(ContrastiveCompat, BadSizesAreNamed) {
  const CompatProblem p = compat_problem({}, small_sizes(), at::kCPU);
  const auto message = [](const auto& call) {
    try {
      call();
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string();
  };
  CompatState state = p.state;
  state.bank_coord = at::zeros({8, 7});
  EXPECT_NE(message([&] { CompatWindow({}, state); }).find("[8, 7]"), std::string::npos);
  state = p.state;
  state.history = at::zeros({});
  EXPECT_NE(message([&] { CompatWindow({}, state); }).find("int64"), std::string::npos);
  CompatSettings settings;
  settings.steps = 1;
  EXPECT_NE(message([&] { CompatWindow(settings, p.state); }).find("two steps"), std::string::npos);
  const CompatWindow window({}, p.state);
  EXPECT_NE(message([&] { window.encode(at::zeros({20, 9}), p.ids); }).find("[20, 9]"), std::string::npos);
  EXPECT_NE(message([&] { make_compat_state({.axes = 1, .angles = 2, .width = 4}, at::kCPU); }).find("n 1"),
            std::string::npos);
}

TEST(ContrastiveCompat, Diagnostics) {
  const at::Tensor v = at::randn({10, 4}, at::kDouble), r = at::rand({10}, at::kDouble) + 0.5,
                   noise = at::randn({8, 4}, at::kDouble);
  const PathDiagnostics d = path_diagnostics(v, r, noise);
  EXPECT_NEAR(d.geodesic.item<double>(), (v[9] - v[8]).norm().item<double>(), 1e-14);
  double improvement = 0;
  for (int64_t i = 0; i < 8; ++i) {
    const at::Tensor moved = v[9] + 0.1 * noise[i];
    improvement += std::max(0.0, (r[9] * v[9].dot(v[9]) - r[9] * moved.dot(moved)).item<double>()) / 8;
  }
  EXPECT_GT(improvement, 0);
  EXPECT_NEAR(d.optimality.item<double>(), improvement, 1e-13);
  const at::Tensor pair = at::stack({r, v.norm(2, 1)});
  EXPECT_NEAR(d.coupling.item<double>(), at::corrcoef(pair)[0][1].item<double>() + 1, 1e-6);
  // Opposite by construction: no distance from -1.
  const at::Tensor line = at::linspace(1, 2, 10, at::kDouble);
  EXPECT_NEAR(path_diagnostics(line.unsqueeze(1), -line, at::zeros({1, 1}, at::kDouble)).coupling.item<double>(), 0,
              1e-7);
  // In this window nothing moves.
  const CompatProblem p = compat_problem({}, small_sizes(), at::kCPU);
  CompatWindow window(p.settings, p.state);
  const CompatPhase free = window.free_phase(window.encode(p.embedding, p.ids, p.mask));
  const PathDiagnostics still = path_diagnostics(free, at::randn({8, 8}));
  EXPECT_EQ(still.geodesic.item<float>(), 0);
  EXPECT_NEAR(still.coupling.item<float>(), 1, 1e-2);
}

TEST(ContrastiveRules, ReadoutGradientIsAutograds) {
  const at::Tensor w = at::randn({7, 6}, at::kDouble).requires_grad_(),
                   b = at::randn({7}, at::kDouble).requires_grad_();
  const at::Tensor o = at::randn({5, 6}, at::kDouble), target = at::randint(0, 7, {5}, at::kLong);
  const at::Tensor loss = at::cross_entropy_loss(o.matmul(w.t()) + b, target);
  const auto want = torch::autograd::grad({loss}, {w, b});
  const ReadoutGradient got = readout_gradient(o.matmul(w.detach().t()) + b.detach(), o, target);
  EXPECT_LT((got.weight - want[0]).abs().max().item<double>(), 1e-14);
  EXPECT_LT((got.bias - want[1]).abs().max().item<double>(), 1e-14);
  EXPECT_THROW(readout_gradient(o.matmul(w.detach().t()), o, target.narrow(0, 0, 4)), c10::Error);
}

TEST(ContrastiveRules, SpsaIsExactOnALine) {
  const at::Tensor slope = at::randn({3}, at::kDouble), directions = at::eye(3, at::kDouble);
  const at::Tensor value = directions.matmul(slope) * 0.01;
  at::Tensor gradient = at::zeros({3}, at::kDouble);
  for (int64_t i = 0; i < 3; ++i) gradient += spsa_part(value[i], -value[i], directions[i], 0.01, 3);
  EXPECT_LT((gradient - slope / 3).abs().max().item<double>(), 1e-13);
  EXPECT_THROW(spsa_part(value, -value, directions[0], 0.01, 3), c10::Error);
}

TEST(ContrastiveRules, SmallPlanesAreSkippedAndBoundsHold) {
  at::Tensor u = at::zeros({4}, at::kDouble);
  u[2] = -1;
  const ScalarDirection d = scalar_direction(u, u, 3);
  EXPECT_EQ(d.theta[0].item<double>(), 0);
  EXPECT_NEAR(d.theta[1].item<double>(), -0.01 * M_PI, 1e-15);
  EXPECT_NEAR(d.g[2].item<double>(), 1, 1e-7);
  const at::Tensor g = at::tensor({-3.0, 1.0, 500.0}), theta = at::tensor({4.0, -4.0});
  project_metric_(g, theta);
  EXPECT_TRUE(at::allclose(g, at::tensor({0.01, 1.0, 100.0})));
  EXPECT_TRUE(at::allclose(theta, at::tensor({4.0 - 2 * M_PI, 2 * M_PI - 4.0})));
}

}  // namespace
}  // namespace hrm::objectives

// The gradient of the expected diversity against sums over all outcomes of tiny policies.

#include "hrm/objectives/diversity.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hrm/data/batch.h"
#include "hrm/objectives/chunked_cross_entropy.h"
#include "objectives/tiny_policy.h"
#include "support/expect_error.h"

namespace hrm::objectives {
namespace {

using config::PolychromicObjective;
using test::distances;
using test::expect_error;
using test::pair_diversity;
using test::TinyPolicy;

TinyPolicy one_step() {
  return TinyPolicy(at::randn({4}, at::kDouble));
}
TinyPolicy two_steps() {
  return TinyPolicy(at::randn({3}, at::kDouble), at::randn({3, 3}, at::kDouble));
}
at::Tensor embeddings(const TinyPolicy& policy) {
  return at::randn({policy.answers(), 5}, at::kDouble);
}

// The expectation of what score_loss leaves in the head, over all groups y, for advantages (groups, N).
at::Tensor expected_gradient(const TinyPolicy& policy, const at::Tensor& y, const at::Tensor& advantages) {
  const at::Tensor p = policy.group_probabilities(policy.head->weight().detach(), y);
  const at::Tensor weights = score_weights(advantages * p.unsqueeze(1), policy.mask(y), 1, 1, at::ones({}));
  return -policy.score_gradient(y, weights);
}

RunningDiversity running_at(double mean) {
  RunningDiversity running = make_running_diversity(at::kCPU);
  running.add(at::full({}, mean * 4), at::full({}, 4.0));
  return running;
}

TEST(ScoreFunction, IsTheGradientOfTheExpectedDiversity) {
  for (const TinyPolicy& policy : {one_step(), two_steps()}) {
    const at::Tensor emb = embeddings(policy);
    for (const int64_t N : {2, 3}) {
      const at::Tensor y = policy.groups(N);
      const GroupDiversity D = pair_diversity(distances(emb, y));
      const at::Tensor want = policy.exact_gradient(y, D.totals);
      EXPECT_GT(want.abs().max().item<double>(), 1e-4);
      for (const auto baseline :
           {DiversityBaseline::leave_one_out, DiversityBaseline::running_mean, DiversityBaseline::none}) {
        const at::Tensor got = expected_gradient(policy, y, score_advantages(D, baseline, running_at(0.7)));
        EXPECT_TRUE(at::allclose(got, want, 1e-9, 1e-12)) << N << " " << static_cast<int>(baseline);
      }
    }
  }
}

// What the baselines are for: less noise around the same mean.
TEST(ScoreFunction, BaselinesMakeItQuieter) {
  const TinyPolicy policy = one_step();
  for (const int64_t N : {2, 3}) {
    const at::Tensor y = policy.groups(N);
    const GroupDiversity D = pair_diversity(distances(embeddings(policy), y));
    const at::Tensor p = policy.group_probabilities(policy.head->weight().detach(), y);
    const double mean = (p * D.totals).sum().item<double>();
    const auto size = [&](DiversityBaseline baseline) {
      const at::Tensor A = score_advantages(D, baseline, running_at(mean));
      return (A.square().sum(1) * p).sum().item<double>();
    };
    EXPECT_LT(size(DiversityBaseline::leave_one_out), 0.8 * size(DiversityBaseline::none)) << N;
  }
}

// Sets of n of N answers, with any value of a set: each advantage an unbiased estimate of the gradient of E[f(n)].
TEST(Marginal, IsTheGradientOfTheExpectedSetValue) {
  const TinyPolicy policy = one_step();
  const at::Tensor emb = embeddings(policy), quality = at::rand({policy.answers()}, at::kDouble);
  for (const auto& [N, n] : {std::pair<int64_t, int64_t>{3, 2}, {4, 2}, {4, 3}, {3, 1}}) {
    for (const SetMode mode : {SetMode::diversity, SetMode::mul}) {
      const auto value_of = [&](const at::Tensor& y, const at::Tensor& members) {
        return set_values(subset_diversity(distances(emb, y), members), quality.index({y}), members, mode);
      };
      const at::Tensor set = policy.groups(n), all = at::ones({1, n}, at::kBool);
      const at::Tensor want = policy.exact_gradient(set, value_of(set, all).squeeze(1));
      const at::Tensor y = policy.groups(N), members = subset_members(N, n);
      const at::Tensor got = expected_gradient(policy, y, marginal_advantages(value_of(y, members), members));
      EXPECT_TRUE(at::allclose(got, want, 1e-9, 1e-12)) << N << " " << n;
      EXPECT_EQ(want.abs().max().item<double>() > 1e-6, n > 1);
    }
  }
}

// f of the published form: n/(N-n) times the mean over subsets with i of f - mean f.
TEST(Marginal, AsPublished) {
  const at::Tensor members = subset_members(5, 2), f = at::randn({3, members.size(0)}, at::kDouble);
  const at::Tensor in = members.to(at::kDouble), centred = f - f.mean(1, true);
  const at::Tensor published = at::matmul(centred, in) / in.sum(0);
  EXPECT_TRUE(at::allclose(marginal_advantages(f, members), published * (2.0 / 3)));
  EXPECT_LT(marginal_advantages(f, members).sum(1).abs().max().item<double>(), 1e-12);
}

TEST(Subsets, AreAllThereAre) {
  const at::Tensor most = subset_members(4, 3);
  EXPECT_TRUE(at::equal(most, at::eye(4).to(at::kBool).logical_not()));  // row i: all but i
  const at::Tensor some = subset_members(6, 3);
  EXPECT_EQ(some.size(0), 20);
  EXPECT_TRUE(some.sum(1).eq(3).all().item<bool>());
  const at::Tensor powers = at::pow(2, at::arange(6)), keys = (some * powers).sum(1);
  EXPECT_EQ(std::get<0>(at::_unique(keys)).size(0), 20);
  expect_error(ExitCode::usage, {"a set of 3 among 3", "1 to 2"}, [] { subset_members(3, 3); });
  expect_error(ExitCode::usage, {"a set of 0 among 3"}, [] { subset_members(3, 0); });
  expect_error(ExitCode::usage, {"more than 100000 sets of 20 among 64"}, [] { subset_members(64, 20); });
}

// The leave-one-out values of a metric are those of its subsets of N - 1.
TEST(Subsets, Diversity) {
  const at::Tensor d = distances(at::randn({7, 4}, at::kDouble), at::randint(0, 7, {3, 5}));
  EXPECT_TRUE(at::allclose(subset_diversity(d, subset_members(5, 4)), pair_diversity(d).loo, 1e-9, 1e-12));
  EXPECT_EQ(subset_diversity(d, subset_members(5, 1)).abs().max().item<double>(), 0);
  EXPECT_THROW(subset_diversity(d, subset_members(4, 2)), c10::Error);
}

// lambda moves the gradient of the score function and of the marginal form. With D as a constant it moves the loss and
// no bit of the gradient.
TEST(Polychromic, WhatLambdaDoes) {
  const TinyPolicy policy = two_steps();
  const at::Tensor y = at::randint(0, 9, {4, 3}), answer = at::randint(0, 9, {5});
  const at::Tensor d = distances(embeddings(policy), y), members = subset_members(3, 2);
  const GroupDiversity D = pair_diversity(d);
  const auto run = [&](PolychromicObjective objective, double lambda) {
    policy.head->weight().mutable_grad() = at::Tensor();
    const at::Tensor ids = policy.ids(answer).reshape({-1});
    const at::Tensor hidden = policy.hidden(answer).reshape({-1, 4});
    at::Tensor loss = chunked_cross_entropy(hidden, *policy.head, ids, at::full({10}, 0.1, at::kDouble)).loss;
    if (objective == PolychromicObjective::compat) {
      loss = loss + constant_term(D.totals, lambda);
    } else {
      const at::Tensor A = objective == PolychromicObjective::marginal
                               ? marginal_advantages(set_values(D.loo, {}, members, SetMode::diversity), members)
                               : score_advantages(D, DiversityBaseline::leave_one_out, {});
      const at::Tensor flat = y.reshape({-1});
      loss = loss +
             score_loss(policy.hidden(flat), *policy.head, policy.ids(flat), score_weights(A, policy.mask(y), lambda))
                 .loss;
    }
    loss.backward();
    return std::pair(loss.item<double>(), policy.head->weight().grad().clone());
  };
  for (const auto objective : {PolychromicObjective::score_function, PolychromicObjective::marginal}) {
    const auto [loss0, grad0] = run(objective, 0);
    const auto [loss2, grad2] = run(objective, 2);
    const auto [loss4, grad4] = run(objective, 4);
    EXPECT_GT((grad2 - grad0).abs().max().item<double>(), 1e-3) << objective;
    EXPECT_TRUE(at::allclose(grad4 - grad0, 2 * (grad2 - grad0), 1e-9, 1e-12));
  }
  const auto [loss0, grad0] = run(PolychromicObjective::compat, 0);
  const auto [loss2, grad2] = run(PolychromicObjective::compat, 2);
  EXPECT_NEAR(loss2, loss0 - 2 * D.totals.mean().item<double>(), 1e-12);
  EXPECT_TRUE(at::equal(grad0, grad2));
}

// Two micro-batches that divide by the groups of both sum to one batch.
TEST(Polychromic, MicroBatches) {
  const TinyPolicy policy = two_steps();
  const at::Tensor y = at::randint(0, 9, {5, 3}), A = at::randn({5, 3}, at::kDouble), groups = at::full({}, 5.0);
  const at::Tensor want = policy.score_gradient(y, score_weights(A, policy.mask(y), 0.3, 10));
  at::Tensor got = at::zeros_like(want);
  double constant = 0;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 2}, {2, 3}}) {
    const at::Tensor part = y.narrow(0, first, count);
    got += policy.score_gradient(part, score_weights(A.narrow(0, first, count), policy.mask(part), 0.3, 10, groups));
    constant += constant_term(A.select(1, 0).narrow(0, first, count), 0.3, groups).item<double>();
  }
  EXPECT_TRUE(at::allclose(got, want, 1e-12, 1e-14));
  EXPECT_NEAR(constant, constant_term(A.select(1, 0), 0.3).item<double>(), 1e-12);
}

// Tokens outside the mask and ignored ids take no part; log-probabilities come back for the others.
TEST(Polychromic, MaskAndIgnoredIds) {
  const TinyPolicy policy = two_steps();
  const at::Tensor y = at::randint(0, 9, {2, 2}), flat = y.reshape({-1}), A = at::ones({2, 2}, at::kDouble);
  at::Tensor mask = policy.mask(y);
  mask[1][1] = 0;
  const at::Tensor weights = score_weights(A, mask, 1);
  EXPECT_EQ(weights[1][1].item<double>(), 0);
  EXPECT_EQ(weights[1][0].item<double>(), 0.5);
  at::Tensor ids = policy.ids(flat);
  ids[1][1] = data::kIgnoreLabel;
  const ScoreLoss got = score_loss(policy.hidden(flat), *policy.head, ids, weights);
  const at::Tensor p = policy.probabilities(policy.head->weight().detach());
  EXPECT_NEAR(got.log_p[0].sum().item<double>(), std::log(p[flat[0].item<int64_t>()].item<double>()), 1e-12);
  EXPECT_EQ(got.log_p[1][1].item<double>(), 0);
  EXPECT_NEAR(got.loss.item<double>(), -(got.log_p * weights).sum().item<double>(), 1e-12);
  EXPECT_FALSE(got.log_p.requires_grad());
}

TEST(Advantages, Shaping) {
  const at::Tensor A = at::tensor({-3.0, 1.0, 2.0, 0.5}, at::kDouble).view({2, 2});
  EXPECT_TRUE(at::equal(shape_advantages(A, {}), A));
  const at::Tensor spread = A.square().mean().sqrt() + 1e-4;
  EXPECT_TRUE(at::allclose(shape_advantages(A, {.normalize = true}), A / spread));
  EXPECT_TRUE(at::allclose(shape_advantages(A, {.normalize = true}, {}, at::full({}, 4.0, at::kDouble)), A / 2.0001));
  // Both answers of a group of two have the same advantage: it becomes 1, not infinite.
  const at::Tensor pair = at::full({1, 2}, 0.3, at::kDouble);
  EXPECT_TRUE(at::allclose(shape_advantages(pair, {.normalize = true}), at::ones({1, 2}, at::kDouble), 1e-3));
  EXPECT_TRUE(at::equal(shape_advantages(A, {.clip = 1}), A.clamp(-1, 1)));
  EXPECT_TRUE(at::allclose(shape_advantages(A, {.normalize = true, .clip = 1}), (A / spread).clamp(-1, 1)));
  const at::Tensor barred = at::tensor({1, 1, 0, 0}).to(at::kBool).view({2, 2});
  EXPECT_TRUE(at::equal(shape_advantages(A, {}, barred), at::tensor({-3.0, 0.0, 2.0, 0.5}, at::kDouble).view({2, 2})));
  // Equal texts everywhere: no diversity and no advantage, and still numbers.
  const at::Tensor zero = at::zeros({2, 2}, at::kDouble);
  EXPECT_TRUE(at::equal(shape_advantages(zero, {.normalize = true}), zero));
  expect_error(ExitCode::usage, {"bound on advantages", "-1"}, [&] { shape_advantages(A, {.clip = -1}); });
}

TEST(RunningDiversity, ForgetsSlowly) {
  RunningDiversity running = make_running_diversity(at::kCPU);
  const auto* address = running.state.const_data_ptr();
  EXPECT_EQ(running.mean().item<double>(), 0);
  running.add(at::full({}, 3.0), at::full({}, 4.0), 0.5);
  EXPECT_NEAR(running.mean().item<double>(), 0.75, 1e-12);
  running.add(at::full({}, 2.0), at::full({}, 2.0), 0.5);
  EXPECT_NEAR(running.mean().item<double>(), 3.5 / 4, 1e-12);
  EXPECT_EQ(running.state.const_data_ptr(), address);
}

// A group of one has no diversity; a group of two needs the running mean.
TEST(ScoreAdvantages, SmallGroups) {
  const GroupDiversity one{.totals = at::zeros({2}), .rows = at::zeros({2, 1}), .loo = at::zeros({2, 1})};
  EXPECT_EQ(score_advantages(one, DiversityBaseline::leave_one_out, {}).abs().max().item<double>(), 0);
  const GroupDiversity two{.totals = at::full({2}, 0.5), .rows = at::full({2, 2}, 0.5), .loo = at::zeros({2, 2})};
  EXPECT_NEAR(score_advantages(two, DiversityBaseline::leave_one_out, running_at(0.3)).max().item<double>(), 0.2, 1e-6);
  EXPECT_THROW(score_advantages(two, DiversityBaseline::leave_one_out, {}), c10::Error);
}

TEST(Polychromic, BadInputIsNamed) {
  const at::Tensor A = at::ones({2, 2});
  EXPECT_THROW(score_weights(A, at::ones({3, 2}), 1), c10::Error);
  expect_error(ExitCode::usage, {"above 0, not 0"}, [&] { score_weights(A, at::ones({4, 2}), 1, /*Z=*/0); });
  EXPECT_THROW(set_values(at::ones({2, 3}), {}, subset_members(3, 2), SetMode::mul), c10::Error);
}

}  // namespace
}  // namespace hrm::objectives

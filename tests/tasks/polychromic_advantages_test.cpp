// Advantages of sampled answers: by hand for small groups, and the same for a batch on one rank and on several.

#include "hrm/tasks/polychromic_advantages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hrm/data/batch.h"
#include "support/ranks.h"

namespace hrm::tasks {
namespace {

using config::AdvantageScale;
using config::RewardCombination;

// Four prompts with three answers each.
constexpr int64_t kGroups = 4, kAnswers = 3;

struct Sampled {
  objectives::GroupDiversity diversity;
  at::Tensor embeddings, empty;
};

Sampled sampled_answers() {
  const auto generator = at::detail::createCPUGenerator(7);
  const at::Tensor vectors = at::randn({kGroups * kAnswers, 5}, generator);
  Sampled out{.diversity = {.totals = at::rand({kGroups}, generator),
                            .rows = at::rand({kGroups, kAnswers}, generator),
                            .loo = at::rand({kGroups, kAnswers}, generator)},
              .embeddings = vectors / vectors.norm(2, 1, true),
              .empty = at::zeros({kGroups, kAnswers}, at::kBool)};
  out.empty[1][2] = true;
  return out;
}

Sampled part(const Sampled& all, int64_t first, int64_t groups) {
  return {.diversity = {.totals = all.diversity.totals.narrow(0, first, groups),
                        .rows = all.diversity.rows.narrow(0, first, groups),
                        .loo = all.diversity.loo.narrow(0, first, groups)},
          .embeddings = all.embeddings.narrow(0, first * kAnswers, groups * kAnswers),
          .empty = all.empty.narrow(0, first, groups)};
}

DiversityAdvantages advantages_of(const Sampled& sampled, objectives::RunningDiversity& running,
                                  const config::PolychromicConfig& config, parallel::Comm& comm) {
  return compute_diversity_advantages(sampled.diversity, sampled.embeddings, sampled.empty, running, config, comm);
}

config::PolychromicConfig leave_one_out() {
  config::PolychromicConfig config;
  config.objective = config::PolychromicObjective::score_function;
  config.baseline = config::DiversityBaseline::leave_one_out;
  config.normalize_advantages = false;
  config.advantage_clip = 0;
  config.diversity_weight = 0.25;
  return config;
}

TEST(DiversityAdvantages, AreWhatAnAnswerAddsToItsGroup) {
  const auto comm = parallel::make_single_comm();
  const Sampled sampled = sampled_answers();
  objectives::RunningDiversity running = objectives::make_running_diversity(at::kCPU);
  const DiversityAdvantages got = advantages_of(sampled, running, leave_one_out(), *comm);
  at::Tensor want = sampled.diversity.totals.unsqueeze(1) - sampled.diversity.loo;
  want[1][2] = std::min(0.0f, want[1][2].item<float>());  // nothing is gained by saying nothing
  EXPECT_TRUE(at::allclose(got.values, want));
  const double mean = sampled.diversity.totals.mean().item<double>();
  EXPECT_NEAR(value_of(got.metrics, "diversity"), mean, 1e-6);
  EXPECT_NEAR(value_of(got.metrics, "diversity_loss"), -0.25 * mean, 1e-6);
  EXPECT_EQ(value_of(got.metrics, "loss"), value_of(got.metrics, "diversity_loss"));
  EXPECT_NEAR(value_of(got.metrics, "advantage"), want.abs().mean().item<double>(), 1e-6);
  EXPECT_NEAR(running.mean().item<double>(), mean, 1e-6);
}

TEST(DiversityAdvantages, TheRunningMeanIsThatOfEarlierSteps) {
  const auto comm = parallel::make_single_comm();
  config::PolychromicConfig config = leave_one_out();
  config.baseline = config::DiversityBaseline::running_mean;
  Sampled sampled = sampled_answers();
  sampled.empty.fill_(false);
  objectives::RunningDiversity running = objectives::make_running_diversity(at::kCPU);
  const at::Tensor totals = sampled.diversity.totals.unsqueeze(1).expand({kGroups, kAnswers});
  EXPECT_TRUE(at::allclose(advantages_of(sampled, running, config, *comm).values, totals));
  const double before = running.mean().item<double>();
  EXPECT_TRUE(at::allclose(advantages_of(sampled, running, config, *comm).values, totals - before, 1e-5, 1e-6));
}

// Means and spreads are those of the whole batch, and shares of the metrics add up.
TEST(DiversityAdvantages, AreTheSameOnTwoRanks) {
  const Sampled sampled = sampled_answers();
  for (const bool marginal : {false, true}) {
    config::PolychromicConfig config = leave_one_out();
    if (marginal) config.objective = config::PolychromicObjective::marginal;
    config.subset_size = 2;
    config.normalize_advantages = true;
    config.advantage_clip = 1.2;
    const auto comm = parallel::make_single_comm();
    objectives::RunningDiversity running = objectives::make_running_diversity(at::kCPU);
    const DiversityAdvantages want = advantages_of(sampled, running, config, *comm);
    EXPECT_GT(want.values.abs().max().item<double>(), 0.1) << marginal;
    std::vector<DiversityAdvantages> got(2);
    test::on_ranks({test::Kind::threads, 2}, [&](parallel::Comm& two) {
      objectives::RunningDiversity own = objectives::make_running_diversity(at::kCPU);
      got[static_cast<size_t>(two.rank())] = advantages_of(part(sampled, two.rank() * 2, 2), own, config, two);
      EXPECT_TRUE(at::allclose(own.state, running.state)) << marginal;
    });
    EXPECT_TRUE(at::allclose(at::cat({got[0].values, got[1].values}), want.values, 1e-5, 1e-6)) << marginal;
    for (const auto& [name, value] : want.metrics) {
      EXPECT_NEAR(value_of(got[0].metrics, name) + value_of(got[1].metrics, name), value, 1e-6) << marginal << name;
    }
  }
}

TEST(DiversityWeights, CountTheLabelledTokensAlone) {
  config::PolychromicConfig config = leave_one_out();
  const at::Tensor values = at::tensor({1.0f, -2.0f}).view({1, 2});
  const at::Tensor labels = at::full({2, 4}, 9, at::kLong);
  labels[0].narrow(0, 0, 2).fill_(data::kIgnoreLabel);
  labels[1].narrow(0, 3, 1).fill_(data::kIgnoreLabel);
  config.length_norm = config::LengthNorm::none;
  const at::Tensor weights = diversity_weights(values, labels, config, /*max_tokens=*/10, /*groups=*/5);
  const at::Tensor want = at::tensor({0.0f, 0.0f, 1.0f, 1.0f, -2.0f, -2.0f, -2.0f, 0.0f}).view({2, 4}) * (0.25 / 5);
  EXPECT_TRUE(at::allclose(weights, want)) << weights;
  config.length_norm = config::LengthNorm::max;
  EXPECT_TRUE(at::allclose(diversity_weights(values, labels, config, 10, 5), want / 10));
}

config::GrpoConfig grpo(RewardCombination combination, AdvantageScale scale) {
  config::GrpoConfig config;
  config.reward_combination = combination;
  config.scale_rewards = scale;
  return config;
}

TEST(RewardAdvantages, AreDifferencesFromTheGroup) {
  const auto comm = parallel::make_single_comm();
  // Two rewards, two groups of two answers; in the second group all get the same.
  const at::Tensor rewards = at::tensor({0.0, 1.0, 0.5, 0.5, 2.0, 0.0, 3.0, 3.0}).view({2, 2, 2});
  const RewardAdvantages got =
      compute_reward_advantages(rewards, {"answer", "length"}, {1, 0.25},
                                grpo(RewardCombination::weighted_sum, AdvantageScale::none), at::kCPU, *comm);
  // Sums: 0.5 and 1; 1.25 and 1.25.
  EXPECT_TRUE(at::allclose(got.values, at::tensor({-0.25, 0.25, 0.0, 0.0}).view({2, 2}))) << got.values;
  EXPECT_DOUBLE_EQ(value_of(got.metrics, "reward"), (0.5 + 1 + 1.25 + 1.25) / 4);
  EXPECT_DOUBLE_EQ(value_of(got.metrics, "reward_std"), std::sqrt(0.125) / 2);
  EXPECT_DOUBLE_EQ(value_of(got.metrics, "zero_variance"), 0.5);
  EXPECT_DOUBLE_EQ(value_of(got.metrics, "advantage"), 0.125);
  EXPECT_DOUBLE_EQ(value_of(got.metrics, "reward/answer"), 0.5);
  EXPECT_DOUBLE_EQ(value_of(got.metrics, "reward/length"), 2);
  EXPECT_FALSE(got.all_equal);
  const RewardAdvantages level =
      compute_reward_advantages(at::ones({1, 2, 3}, at::kDouble), {"answer"}, {1},
                                grpo(RewardCombination::weighted_sum, AdvantageScale::group), at::kCPU, *comm);
  EXPECT_TRUE(level.all_equal);
  EXPECT_EQ(level.values.abs().max().item<double>(), 0);
}

TEST(RewardAdvantages, AreTheSameOnTwoRanks) {
  const at::Tensor rewards = at::rand({2, kGroups, kAnswers}, at::detail::createCPUGenerator(3), at::kDouble);
  rewards.select(1, 3).fill_(0.5);
  for (const config::GrpoConfig& config : {grpo(RewardCombination::weighted_sum, AdvantageScale::group),
                                           grpo(RewardCombination::weighted_sum, AdvantageScale::batch),
                                           grpo(RewardCombination::separately_normalised, AdvantageScale::batch)}) {
    const std::string what = cat(config.reward_combination, ", ", config.scale_rewards);
    const auto comm = parallel::make_single_comm();
    const auto of = [&](const at::Tensor& values, parallel::Comm& ranks) {
      return compute_reward_advantages(values, {"answer", "length"}, {1, 2}, config, at::kCPU, ranks);
    };
    const RewardAdvantages want = of(rewards, *comm);
    std::vector<RewardAdvantages> got(2);
    test::on_ranks({test::Kind::threads, 2}, [&](parallel::Comm& two) {
      got[static_cast<size_t>(two.rank())] = of(rewards.narrow(1, two.rank() * 2, 2), two);
    });
    EXPECT_TRUE(at::allclose(at::cat({got[0].values, got[1].values}), want.values)) << what;
    for (const auto& [name, value] : want.metrics) {
      EXPECT_NEAR(value_of(got[0].metrics, name) + value_of(got[1].metrics, name), value, 1e-12) << what << name;
    }
    EXPECT_FALSE(got[0].all_equal || got[1].all_equal) << what;
  }
}

}  // namespace
}  // namespace hrm::tasks

// What a polychromic step learns from and how many answers it samples, by its configuration; and the metrics of that.

#include "hrm/tasks/polychromic_plan.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "hrm/tasks/polychromic_metrics.h"
#include "support/expect_error.h"

namespace hrm::tasks {
namespace {

using Kind = PolychromicKind;

// Batches of 16 in micro-batches of 4; 3 answers to 2 prompts of each for diversity, 5 to all for rewards.
config::Config small_configuration() {
  config::Config config;
  config.train.global_batch_size = 16;
  config.train.micro_batch_size = 4;
  config.polychromic.max_examples_for_diversity = 2;
  config.polychromic.n_generations = 3;
  config.polychromic.max_generation_length = 20;
  config.grpo.num_generations = 5;
  config.grpo.max_completion_length = 30;
  config.grpo.num_iterations = 3;
  return config;
}

TEST(PolychromicPlan, CountsAnswersOfEachKind) {
  config::Config config = small_configuration();
  const PolychromicPlan diverse(config, 2);
  EXPECT_EQ(diverse.rows, 8);
  EXPECT_EQ(diverse.micro_batches, 2);
  EXPECT_EQ(diverse.answers(Kind::diversity), 2 * 3);
  EXPECT_EQ(diverse.most_samples(), 2 * 2 * 3);
  EXPECT_EQ(diverse.most_tokens(), 20);
  EXPECT_EQ(diverse.reward_updates, 1) << "there is no GRPO";
  config.grpo.start_step = 5;
  const PolychromicPlan both(config, 2);
  EXPECT_EQ(both.prompts(Kind::rewards), 4);
  EXPECT_EQ(both.samples(Kind::rewards), 5);
  EXPECT_EQ(both.tokens(Kind::rewards), 30);
  EXPECT_EQ(both.tokens(Kind::diversity), 20);
  EXPECT_EQ(both.most_samples(), 8 * 5);
  EXPECT_EQ(both.kind(4), Kind::diversity);
  EXPECT_EQ(both.kind(5), Kind::rewards);
  config.grpo.start_step = 1;
  EXPECT_EQ(PolychromicPlan(config, 2).diverse_samples, 0) << "no step is left for diversity";
}

TEST(PolychromicPlan, AConstantTermHasNoGradientFromAnswers) {
  config::Config config = small_configuration();
  using config::PolychromicObjective;
  for (const auto& [objective, learns] :
       {std::pair{PolychromicObjective::score_function, true}, std::pair{PolychromicObjective::compat, false}}) {
    config.polychromic.objective = objective;
    const PolychromicPlan plan(config, 1);
    EXPECT_EQ(plan.learns_from_answers(Kind::diversity), learns);
    EXPECT_FALSE(plan.learns_from_answers(Kind::responses));
    EXPECT_TRUE(plan.learns_from_answers(Kind::rewards));
  }
}

// With 3 updates from each batch of answers.
TEST(PolychromicPlan, UpdatesFromOneBatchTakeNoOther) {
  config::Config config = small_configuration();
  config.grpo.start_step = 1;
  const PolychromicPlan plan(config, 1);
  EXPECT_FALSE(plan.learns_again(Kind::rewards, 0)) << "no answers yet";
  EXPECT_TRUE(plan.learns_again(Kind::rewards, 1));
  EXPECT_TRUE(plan.learns_again(Kind::rewards, 2));
  EXPECT_FALSE(plan.learns_again(Kind::rewards, 3));
  EXPECT_FALSE(plan.learns_again(Kind::diversity, 1));
  // Two updates are left of the present batch.
  for (const auto& [steps, batches] :
       {std::pair{1, 0}, std::pair{2, 0}, std::pair{3, 1}, std::pair{5, 1}, std::pair{6, 2}}) {
    EXPECT_EQ(plan.batches_of(steps, Kind::rewards, 1), batches) << steps;
  }
  EXPECT_EQ(plan.batches_of(4, Kind::rewards, 0), 2);
  EXPECT_EQ(plan.batches_of(4, Kind::responses, 0), 4);
}

TEST(PolychromicMetrics, NamesFollowWhatIsSampled) {
  config::Config config = small_configuration();
  config.polychromic.objective = config::PolychromicObjective::none;
  const std::vector<std::string> plain{"loss", "cross_entropy", "tokens"};
  EXPECT_EQ(PolychromicMetrics(PolychromicPlan(config, 1), {}, false).names(), plain);
  config.grpo.start_step = 3;
  const PolychromicMetrics metrics(PolychromicPlan(config, 1), {"answer", "length"}, false);
  EXPECT_TRUE(std::equal(plain.begin(), plain.end(), metrics.names().begin()));
  EXPECT_EQ(metrics.names().back(), "reward/length");
  EXPECT_EQ(metrics.index("reward/answer"), static_cast<int64_t>(metrics.names().size()) - 2);
  test::expect_error(ExitCode::unexpected, {"no metric 'other'"}, [&] { metrics.index("other"); });
  test::expect_error(ExitCode::usage, {"grpo.rewards names 'reward/length' twice"}, [&] {
    PolychromicMetrics(PolychromicPlan(config, 1), {"length", "length"}, false);
  });
}

// A window of 10 steps: 2 with diversity, then 4 updates from 2 batches of answers.
TEST(PolychromicMetrics, MeansAreOverTheStepsThatHaveAValue) {
  config::Config config = small_configuration();
  config.grpo.start_step = 7;
  const PolychromicPlan plan(config, 1);
  PolychromicMetrics metrics(plan, {"answer"}, true);
  std::vector<double> sums(metrics.names().size(), 0);
  const std::map<std::string, std::pair<double, double>> sum_and_mean{{"loss", {20, 2}},
                                                                      {"cross_entropy", {12, 2}},
                                                                      {"tokens", {60, 10}},
                                                                      {"diversity_steps", {2, 2}},
                                                                      {"reward_steps", {2, 2}},
                                                                      {"diversity", {4, 1}},
                                                                      {"diversity_loss", {3, 1.5}},
                                                                      {"advantage", {8, 2}},
                                                                      {"reward_updates", {4, 4}},
                                                                      {"reward/answer", {1, 0.5}},
                                                                      {"ratio", {4, 1}}};
  for (const auto& [name, values] : sum_and_mean) sums[static_cast<size_t>(metrics.index(name))] = values.first;
  const NamedValues summary = metrics.summarize(sums, 10);
  for (const auto& [name, values] : sum_and_mean) EXPECT_DOUBLE_EQ(value_of(summary, name), values.second) << name;
  // Of steps that there were none of nothing is said, and no diversity where none is measured.
  const auto names = [](const NamedValues& values) {
    std::vector<std::string> out;
    for (const auto& [name, value] : values) out.push_back(name);
    return out;
  };
  const std::vector<double> none(sums.size(), 0);
  EXPECT_EQ(names(metrics.summarize(none, 10)),
            (std::vector<std::string>{"loss", "cross_entropy", "tokens", "diversity_steps", "reward_steps",
                                      "reward_updates"}));
  const auto unmeasured = names(PolychromicMetrics(plan, {"answer"}, false).summarize(sums, 10));
  EXPECT_EQ(std::count(unmeasured.begin(), unmeasured.end(), "diversity"), 0);
}

TEST(PolychromicMetrics, SumsOfHostAndDevice) {
  PolychromicMetrics metrics(PolychromicPlan(small_configuration(), 1), {}, true);
  metrics.add_host("diversity", 0.5);
  metrics.add_host({{"diversity", 0.25}, {"finished", 1}});
  EXPECT_EQ(metrics.host()[static_cast<size_t>(metrics.index("diversity"))], 0.75);
  EXPECT_EQ(metrics.host()[static_cast<size_t>(metrics.index("finished"))], 1);
  metrics.clear_host();
  EXPECT_EQ(metrics.host(), std::vector<double>(metrics.names().size(), 0));
  at::Tensor sums = at::zeros({static_cast<int64_t>(metrics.names().size())}, at::kDouble);
  const at::Tensor value = at::full({}, 2.0f).requires_grad_();
  metrics.add(sums, "loss", value);
  metrics.add(sums, "loss", value);
  EXPECT_EQ(sums[0].item<double>(), 4);
  EXPECT_FALSE(sums.requires_grad());
}

}  // namespace
}  // namespace hrm::tasks

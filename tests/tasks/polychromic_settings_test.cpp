// That each setting of sampling, weighing and learning from answers reaches the place that it is for.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "commands/answer_report.h"
#include "hrm/base/file.h"
#include "hrm/commands/commands.h"
#include "tasks/polychromic_steps.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using testing::fresh_folder;
using testing::kAgain;
using testing::kGrpo;
using testing::Overrides;
using testing::SmallPolychromic;
using testing::Step;
using testing::with;

// Of what task.step_inputs() lists.
enum Input { kAnswerIds = 2, kAnswerLabels = 3, kAnswerWeights = 4, kAdvantages = 5 };

// Whether all answers to each prompt are the same: of one half of the groups, or none, is neither.
enum class Alike { all, none, some };

Alike answers_of(const Overrides& overrides) {
  SmallPolychromic run(fresh_folder("alike"), overrides);
  tasks::PolychromicTask& task = run.task;
  task.load_batch(1, 1);
  task.prepare_step(1);
  const bool rewards = task.plan().kind(1) == tasks::PolychromicKind::rewards;
  const int64_t samples = rewards ? task.plan().reward_samples : task.plan().diverse_samples;
  const int64_t prompts = (rewards ? task.plan().micro_rows : task.plan().diverse_prompts) * task.plan().micro_batches;
  const at::Tensor rows = task.step_inputs()[kAnswerIds].narrow(0, 0, prompts * samples).view({prompts, samples, -1});
  const int64_t alike = rows.eq(rows.narrow(1, 0, 1)).flatten(1).all(1).sum().item<int64_t>();
  return alike == prompts ? Alike::all : alike == 0 ? Alike::none : Alike::some;
}

// Each of them alone leaves the most probable token and no other.
const std::vector<std::string> kGreedy{"temperature=1e-6", "top_k=1", "top_p=1e-9", "min_p=1"};

TEST(PolychromicSettings, EachOfSamplingReachesTheSampler) {
  for (const auto& [prefix, base] :
       {std::pair<std::string, Overrides>{"polychromic.diversity_", {}}, {"grpo.", kGrpo}}) {
    EXPECT_EQ(answers_of(base), Alike::none) << prefix;
    for (const std::string& setting : kGreedy) {
      EXPECT_EQ(answers_of(with(base, {prefix + setting})), Alike::all) << prefix << setting;
    }
  }
}

TEST(PolychromicSettings, EachOfSamplingReachesEval) {
  const auto dir = fresh_folder("eval");
  {
    SmallPolychromic run(dir, {"train.steps=1", "optim.warmup_steps=0"});
    run.trainer.start_fresh();
    run.trainer.run();
    run.task.write_files(dir / "small");
  }
  const auto distinct = [&](const std::string& name, const Overrides& more) {
    commands::EvalOptions options;
    options.checkpoint = (dir / "small").string();
    options.overrides = with({"eval.answers=3", "eval.answer_tokens=8", "eval.max_samples=4"}, more);
    options.report = (dir / name).string();
    EXPECT_EQ(commands::run_eval(options), 0);
    const std::string file = (dir / name / "eval.json").string();
    size_t most = 0;
    for (const commands::ReportedPrompt& prompt :
         commands::parse_evaluation(read_text(file, ExitCode::data), file).prompts) {
      most = std::max(most, std::set<std::string>(prompt.sampled.begin(), prompt.sampled.end()).size());
    }
    return most;
  };
  EXPECT_EQ(distinct("plain", {"eval.answer_temperature=1", "eval.answer_top_p=1"}), 3U);
  EXPECT_EQ(distinct("cold", {"eval.answer_temperature=1e-6", "eval.answer_top_p=1"}), 1U);
  EXPECT_EQ(distinct("narrow", {"eval.answer_temperature=1", "eval.answer_top_p=1e-9"}), 1U);
}

// Gradients of  sum over the answers' tokens of weight * -log pi,  pi at this temperature, by plain ATen.
std::vector<at::Tensor> gradients_by_formula(SmallPolychromic& run, const at::Tensor& weights, double temperature) {
  tasks::PolychromicTask& task = run.task;
  const std::vector<at::Tensor> inputs = task.step_inputs();
  const at::Tensor labels = inputs[kAnswerLabels].narrow(0, 0, weights.size(0));
  const at::AutoGradMode records(true);
  task.parameters().zero_grad();
  models::LanguageModel& model = *task.lm().model;
  const at::Tensor hidden = model.forward({.ids = inputs[kAnswerIds].narrow(0, 0, weights.size(0))}).hidden;
  const at::Tensor log_p = (model.head().forward(hidden) / temperature).log_softmax(-1);
  const at::Tensor picked = at::gather(log_p, -1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  (-(picked * weights).masked_fill(labels.eq(data::kIgnoreLabel), 0).sum()).backward();
  return testing::gradients_of(task);
}

// The loss divides logits as the sampler did.
TEST(PolychromicSettings, TheLossHasTheTemperatureOfTheSampler) {
  const double lambda = 100;  // beside it the responses' gradient is small
  const Overrides cold{"polychromic.diversity_weight=0", "polychromic.diversity_temperature=2"};
  const Overrides hot{cat("polychromic.diversity_weight=", lambda), "polychromic.diversity_temperature=2"};
  const Step none = testing::step_of(cold);
  Step answers = testing::step_of(hot);
  for (size_t i = 0; i < none.gradients.size(); ++i) answers.gradients[i] = answers.gradients[i] - none.gradients[i];
  SmallPolychromic run(fresh_folder("formula"), hot);
  testing::move_adapters(run.task, 0.05);
  run.task.load_batch(1, 1);
  run.task.prepare_step(1);
  const tasks::PolychromicPlan& plan = run.task.plan();
  const at::Tensor weights = run.task.step_inputs()[kAnswerWeights].narrow(
      0, 0, plan.diverse_prompts * plan.micro_batches * plan.diverse_samples);
  EXPECT_LE(testing::largest_gap({gradients_by_formula(run, weights, 2), {}}, answers), 1e-3);
  EXPECT_GT(testing::largest_gap({gradients_by_formula(run, weights, 1), {}}, answers), 0.1);
}

TEST(PolychromicSettings, RewardsHaveTheTemperatureOfTheirSampler) {
  // Answers of a model that knows nothing: some have one of six letters.
  const Overrides settings =
      with(kAgain, {"grpo.num_iterations=1", "grpo.rewards=format", "grpo.reward_pattern=(?s).*[a-f].*",
                    "grpo.temperature=2", "grpo.loss_type=dapo"});
  const Step step = testing::step_of(settings);
  SmallPolychromic run(fresh_folder("formula"), settings);
  testing::move_adapters(run.task, 0.05);
  run.task.load_batch(1, 1);
  run.task.prepare_step(1);
  // Where the policy is the one that sampled: every token its answer's advantage / all tokens.
  const at::Tensor labels = run.task.step_inputs()[kAnswerLabels], advantages = run.task.step_inputs()[kAdvantages];
  const at::Tensor there = labels.ne(data::kIgnoreLabel).to(at::kFloat);
  const at::Tensor weights = advantages.unsqueeze(1) * there / there.sum();
  ASSERT_GT(weights.abs().max().item<double>(), 0);
  EXPECT_LE(testing::largest_gap({gradients_by_formula(run, weights, 2), {}}, step), 1e-3);
  EXPECT_GT(testing::largest_gap({gradients_by_formula(run, weights, 1), {}}, step), 0.1);
}

// Of each answer A_i, from its weight lambda / groups * A_i of each of its tokens.
at::Tensor advantages_with(const Overrides& more) {
  SmallPolychromic run(fresh_folder("shaped"), with({"polychromic.length_norm=none"}, more));
  run.task.load_batch(1, 1);
  run.task.prepare_step(1);
  const tasks::PolychromicPlan& plan = run.task.plan();
  const int64_t groups = plan.diverse_prompts * plan.micro_batches;
  const at::Tensor weights =
      run.task.step_inputs()[kAnswerWeights].narrow(0, 0, groups * plan.diverse_samples).to(at::kDouble);
  const at::Tensor of_rows = std::get<0>(weights.max(1)) + std::get<0>(weights.min(1));  // one of both is 0
  return of_rows * static_cast<double>(groups) / run.loaded.config.polychromic.diversity_weight;
}

TEST(PolychromicSettings, AdvantagesAreShaped) {
  const at::Tensor plain = advantages_with({});
  const double size = plain.square().mean().sqrt().item<double>();
  ASSERT_GT(size, 1e-3);
  ASSERT_GT(std::abs(size - 1), 0.1) << "else nothing is to be seen";
  const at::Tensor normal = advantages_with({"polychromic.normalize_advantages=true"});
  EXPECT_TRUE(at::allclose(normal, plain / (size + 1e-4), 1e-4, 1e-5)) << normal << plain;
  const double bound = 0.5 * plain.abs().max().item<double>();
  const at::Tensor clipped = advantages_with({cat("polychromic.advantage_clip=", bound)});
  EXPECT_TRUE(at::allclose(clipped, plain.clamp(-bound, bound), 1e-4, 1e-6)) << clipped << plain;
}

}  // namespace
}  // namespace hrm

// One step of the polychromic task: its gradient however a batch is cut and its prompts are shared, what lambda
// changes, and what a step learns from.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "tasks/polychromic_steps.h"

namespace hrm {
namespace {

using testing::fresh_folder;
using testing::has_gradients;
using testing::kAgain;
using testing::kGrpo;
using testing::kLetters;
using testing::kSemantic;
using testing::largest_gap;
using testing::Overrides;
using testing::SmallPolychromic;
using testing::Step;
using testing::step_of;
using testing::with;

TEST(Polychromic, MicroBatchesMakeTheSameStep) {
  const Overrides all{"polychromic.max_examples_for_diversity=8"};
  for (const Overrides& kind :
       {all, with(all, {"lora.r=0"}), with(all, with(kSemantic, {"polychromic.objective=marginal"})),
        with(kLetters, {"grpo.beta=0.1"}), with(kLetters, {"grpo.loss_type=dr_grpo", "grpo.scale_rewards=batch"})}) {
    const Step whole = step_of(kind), parts = step_of(with(kind, {"train.micro_batch_size=2"}));
    EXPECT_TRUE(has_gradients(whole)) << kind.back();
    EXPECT_LE(largest_gap(whole, parts), 1e-4) << kind.back();
    // All but the ratio's mean, which is of tokens that are counted alike.
    EXPECT_TRUE(at::allclose(whole.sums, parts.sums, 1e-4, 1e-5)) << kind.back() << whole.sums << parts.sums;
  }
}

// Prompts that are read once, and no padding, are the same step with fewer tokens.
TEST(Polychromic, SharedPromptsMakeTheSameStep) {
  const Overrides one{"train.micro_batch_size=4"};
  for (const Overrides& kind :
       {one, with(one, {"lora.r=0"}), with(with(one, kSemantic), {"polychromic.objective=marginal"}),
        with(with(one, kLetters), {"grpo.beta=0.1"}), with(with(one, kLetters), {"grpo.loss_type=dr_grpo"}),
        with(with(one, kLetters),
             {"grpo.mask_truncated_completions=true", "lora.dropout=0.1", "grpo.max_completion_length=64"})}) {
    const Step rows = step_of(with(kind, {"polychromic.share_prompts=off"}));
    EXPECT_TRUE(has_gradients(rows)) << kind.back();
    double flops = 0.9 * rows.flops;
    for (const char* how : {"answers", "responses"}) {
      const Step shared = step_of(with(kind, {cat("polychromic.share_prompts=", how)}));
      const std::string what = cat(kind.back(), ", ", how);
      EXPECT_LE(largest_gap(shared, rows), 1e-4) << what;
      EXPECT_TRUE(at::allclose(shared.sums, rows.sums, 1e-4, 1e-5)) << what << shared.sums << rows.sums;
      // Rewards learn from no responses that could be joined.
      const bool alike = std::string(how) == "responses" && kind.size() > 2 && kind[1] == kGrpo.front();
      EXPECT_LT(shared.flops, alike ? 1.001 * flops : flops) << what;
      flops = shared.flops;
    }
  }
}

// What was not dropped when a block was computed is not dropped when it is computed again.
TEST(Polychromic, RecomputedAnswersHaveNoDropoutEither) {
  for (const Overrides& kind : {Overrides{}, kLetters}) {
    const Overrides drops = with(kind, {"lora.dropout=0.3"});
    EXPECT_LE(largest_gap(step_of(drops), step_of(with(drops, {"hf.recompute=true"}))), 1e-6);
  }
}

TEST(Polychromic, LambdaMovesTheGradientUnlessTheTermIsAConstant) {
  for (const char* objective : {"score_function", "marginal", "compat"}) {
    const Overrides base = with(kSemantic, {cat("polychromic.objective=", objective)});
    const Step none = step_of(with(base, {"polychromic.diversity_weight=0"}));
    const Step much = step_of(with(base, {"polychromic.diversity_weight=2"}));
    const double gap = largest_gap(none, much);
    if (std::string(objective) == "compat") {
      EXPECT_EQ(gap, 0) << "the reference trainer's term has no gradient";
    } else {
      EXPECT_GT(gap, 1e-3) << objective;
    }
    EXPECT_LT(much.sums[0].item<double>(), none.sums[0].item<double>()) << "the loss shows the diversity";
  }
}

// Answers are sampled at steps 1, 1 + n, ...; other steps are cross-entropy alone.
TEST(Polychromic, SamplesEveryNthStep) {
  SmallPolychromic run(fresh_folder("every"), {"polychromic.compute_diversity_every_n_steps=3", "grpo.start_step=6",
                                               "grpo.rewards=length", "grpo.max_completion_length=8"});
  using tasks::PolychromicKind;
  const auto kind = [&](int64_t step) { return run.task.plan().kind(step); };
  EXPECT_EQ(kind(1), PolychromicKind::diversity);
  EXPECT_EQ(kind(2), PolychromicKind::responses);
  EXPECT_EQ(kind(4), PolychromicKind::diversity);
  EXPECT_EQ(kind(5), PolychromicKind::responses);
  EXPECT_EQ(kind(6), PolychromicKind::rewards);
  SmallPolychromic safe(fresh_folder("safe"), {"polychromic.performance_mode=safe", "polychromic.n_generations=5",
                                               "polychromic.max_generation_length=20"});
  EXPECT_EQ(safe.task.plan().diverse_samples, 3);
  EXPECT_EQ(safe.task.plan().diverse_tokens, 20);
  EXPECT_EQ(safe.task.plan().kind(2), PolychromicKind::responses);
  EXPECT_EQ(safe.task.plan().kind(11), PolychromicKind::diversity);
}

// log pi of the labelled tokens of the sampled rows that a step is about to learn from, (rows, width), else 0.
at::Tensor answer_log_probs(tasks::PolychromicTask& task) {
  const std::vector<at::Tensor> inputs = task.step_inputs();
  const at::Tensor &ids = inputs[2], &labels = inputs[3];
  const at::NoGradGuard no_grad;
  const nn::LmHead& head = task.lm().model->head();
  const at::Tensor logits = head.forward(task.lm().model->forward({.ids = ids}).hidden).to(at::kDouble);
  const at::Tensor there = labels.ne(data::kIgnoreLabel);
  const at::Tensor picked = at::gather(logits.log_softmax(-1), -1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  return picked.masked_fill(there.logical_not(), 0);
}

// grpo.num_iterations steps learn from one batch of answers; behind the first the ratio of the policies counts.
TEST(Polychromic, LearnsSeveralTimesFromOneBatchOfAnswers) {
  const Overrides base = with(kAgain, {"grpo.num_iterations=2", "grpo.scale_rewards=batch"});
  const auto second_step = [&](const Overrides& more) {
    SmallPolychromic run(fresh_folder("again"), with(base, more));
    tasks::PolychromicTask& task = run.task;
    const auto step = [&](int64_t number) {
      task.load_batch(number, 1);
      task.prepare_step(number);
      Step out{{}, at::zeros({static_cast<int64_t>(task.metric_names().size())}, at::kDouble)};
      task.forward_backward(0, {}, out.sums);
      for (const nn::Parameter& parameter : task.parameters().all()) {
        out.gradients.push_back(parameter.master.grad().detach().clone());
        parameter.master.mutable_grad().zero_();
      }
      return out;
    };
    const auto metric = [&](const Step& of, const std::string& name) {
      const auto& names = task.metric_names();
      return of.sums[std::find(names.begin(), names.end(), name) - names.begin()].item<double>();
    };
    const std::string first_digest = task.next_batch_digest(1);
    const Step first = step(1);
    EXPECT_EQ(metric(first, "ratio"), 1);
    EXPECT_EQ(metric(first, "clip_low") + metric(first, "clip_high"), 0);
    EXPECT_EQ(metric(first, "reward_steps"), 1);
    const at::Tensor answers = task.step_inputs()[2].clone(), before = answer_log_probs(task);
    const std::string digest = task.next_batch_digest(2);
    EXPECT_NE(digest, first_digest);
    testing::move_adapters(task, 0.2);
    const Step second = step(2);
    EXPECT_TRUE(at::equal(task.step_inputs()[2], answers)) << "the same answers";
    EXPECT_EQ(task.next_batch_digest(3), digest) << "no new prompts";
    EXPECT_EQ(metric(second, "reward_steps"), 0);
    EXPECT_EQ(metric(second, "reward_updates"), 1);
    const at::Tensor there = task.step_inputs()[3].ne(data::kIgnoreLabel);
    const at::Tensor ratios = (answer_log_probs(task) - before).exp();
    EXPECT_NEAR(metric(second, "ratio"), ratios.masked_select(there).mean().item<double>(), 1e-4);
    EXPECT_GT(std::abs(metric(second, "ratio") - 1), 1e-4);
    const double clipped = metric(second, "clip_low") + metric(second, "clip_high");
    step(3);
    EXPECT_FALSE(at::equal(task.step_inputs()[2], answers)) << "new answers";
    EXPECT_NE(task.next_batch_digest(4), digest);
    return std::pair(second, clipped);
  };
  const auto [wide, unclipped] = second_step({"grpo.epsilon=0.99", "grpo.epsilon_high=100"});
  const auto [narrow, clipped] = second_step({"grpo.epsilon=0.0001"});
  EXPECT_LT(unclipped, clipped);
  EXPECT_GT(clipped, 0.01) << "of all tokens, most of them in groups of equal rewards";
  EXPECT_GT(largest_gap(wide, narrow), 0.1) << "the bound takes gradients away";
}

// What a step multiplies is counted at the width of its rows, not of the longest that there may be.
TEST(Polychromic, FlopsAreThoseOfTheRowsAsTheyArePadded) {
  const auto flops = [](const Overrides& more) {
    SmallPolychromic run(fresh_folder("flops"), more);
    run.task.load_batch(1, 1);
    run.task.prepare_step(1);
    const double counted = run.task.flops_per_step();
    run.task.take_performance(1, 1, {});
    EXPECT_EQ(run.task.flops_per_step(), counted) << "of the steps before, until there is one since";
    return counted;
  };
  const Overrides plain{"polychromic.objective=none", "polychromic.max_generation_length=100", "chat.max_length=120"};
  const double wide = flops(with(plain, {"chat.buckets=1"})), narrow = flops(with(plain, {"chat.buckets=64"}));
  EXPECT_LT(narrow, 0.7 * wide) << "prompts and responses of some 50 characters";
  EXPECT_GT(narrow, 0.2 * wide);
  EXPECT_GT(flops({}), flops({"polychromic.objective=compat"})) << "answers that are learned from";
  // The reference reads what is learned from once more: a pass beside two.
  EXPECT_DOUBLE_EQ(flops(with(kGrpo, {"grpo.beta=0.1"})), 1.5 * flops(kGrpo));
}

// All examples in packed rows make the step that they make in rows of their own.
TEST(Polychromic, PackedRowsMakeTheSameStep) {
  const auto dir = fresh_folder("packed");
  std::ofstream(dir / "train.jsonl") << R"({"prompt": "one", "response": "1"}
{"prompt": "twenty two is written", "response": "22"}
{"prompt": "half", "response": "0.5"}
{"prompt": "ten", "response": "10, or 1e1"}
{"prompt": "a dozen and a few more", "response": "15 or so"}
{"prompt": "seven", "response": "7"}
)";
  const Overrides base{"data.train=" + (dir / "train.jsonl").string(), "chat.val_share=0", "polychromic.objective=none",
                       "polychromic.max_generation_length=100"};
  const Overrides packed = with(base, {"chat.packing=true"});
  const double rows = SmallPolychromic(dir, packed).task.samples_per_epoch();
  EXPECT_LE(rows, 3) << "several examples share a row";
  const Step apart = step_of(with(base, {"train.global_batch_size=6"})),
             together = step_of(with(packed, {cat("train.global_batch_size=", static_cast<int64_t>(rows))}));
  EXPECT_LE(largest_gap(apart, together), 1e-4);
  EXPECT_TRUE(at::allclose(apart.sums, together.sums, 1e-5, 1e-6)) << apart.sums << together.sums;
}

}  // namespace
}  // namespace hrm

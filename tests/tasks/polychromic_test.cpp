// The polychromic task: its gradient however a batch is cut, what lambda changes, its life from start to resume, on
// ranks, and what it refuses.

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "commands/answer_report.h"
#include "hrm/base/file.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/commands/commands.h"
#include "hrm/tasks/causal_inference.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/ranks.h"
#include "tasks/polychromic_steps.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using testing::answers_folder;
using testing::fresh_folder;
using testing::has_gradients;
using testing::kAgain;
using testing::kGrpo;
using testing::kLetters;
using testing::kSemantic;
using testing::largest_gap;
using testing::metrics_without_timing;
using testing::Overrides;
using testing::SmallPolychromic;
using testing::Step;
using testing::step_of;
using testing::with;

std::vector<nlohmann::json> read_metrics(const fs::path& dir) {
  std::ifstream in(dir / "small" / "metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

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
    const double counted = run.task.flops_per_step();
    run.task.take_performance(1, 1);
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

// data.train=... of 40 prompts with a response each.
std::string one_response_each(const fs::path& dir) {
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += cat(R"({"prompt": "say )", i, R"(", "response": ")", i, "\"}\n");
  write_text_atomic(dir / "single.jsonl", lines);
  return "data.train=" + (dir / "single.jsonl").string();
}

// An epoch is all prompts once, however often their answers are learned from, and however many responses there are.
TEST(Polychromic, EpochsCountPromptsNotUpdates) {
  const auto samples = [](const Overrides& more) {
    SmallPolychromic run(fresh_folder("epochs"), with(kGrpo, more));
    return run.task.samples_per_epoch();
  };
  const double once = samples({});
  EXPECT_EQ(once, 60) << "of 240 records";
  const Overrides epochs{"train.steps=0", "train.epochs=2"};
  EXPECT_EQ(samples(epochs), once);
  EXPECT_EQ(samples(with(epochs, {"grpo.num_iterations=3"})), 3 * once);
  // 4 of the batches are fine-tuning's, which goes through records; what is left of the epochs is of prompts.
  const double left = 2 - 4 * 8.0 / 240;
  for (const double updates : {1, 3}) {
    EXPECT_DOUBLE_EQ(samples(with(epochs, {cat("grpo.num_iterations=", updates), "grpo.start_step=5"})),
                     (4 + updates * left * once / 8) * 8 / 2);
  }
  // Of one record to a prompt an epoch is what it is without.
  const auto dir = fresh_folder("single");
  const Overrides single = with(epochs, {one_response_each(dir), "chat.val_share=0", "grpo.rewards=length"});
  EXPECT_EQ(samples(single), 40);
  EXPECT_DOUBLE_EQ(samples(with(single, {"grpo.num_iterations=3", "grpo.start_step=5"})), (4 + 3 * (10 - 4)) * 8 / 2);
}

// The prompts of the answers that a step is about to learn from, one of each group of so many.
std::vector<std::vector<int64_t>> prompts_asked(const tasks::PolychromicTask& task, int64_t prompts, int64_t answers) {
  const std::vector<at::Tensor> inputs = task.step_inputs();
  std::vector<std::vector<int64_t>> out;
  for (int64_t group = 0; group < prompts; ++group) {
    const at::Tensor ids = inputs[2][group * answers], labels = inputs[3][group * answers];
    const int64_t first = labels.ne(data::kIgnoreLabel).nonzero()[0].item<int64_t>();
    out.emplace_back(ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + first + 1);
  }
  return out;
}

// However many responses the data has to it.
TEST(Polychromic, GrpoAsksEachPromptOnceAnEpoch) {
  SmallPolychromic run(fresh_folder("prompts"), with(kGrpo, {"train.global_batch_size=20"}));
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::set<std::vector<int64_t>> asked;
    for (int64_t step = 1; step <= 3; ++step) {
      run.task.load_batch(3 * epoch + step, 1);
      for (auto& prompt : prompts_asked(run.task, 20, 4)) asked.insert(std::move(prompt));
    }
    EXPECT_EQ(asked.size(), 60u) << "epoch " << epoch;
  }
}

// Fine-tuning in front of it goes through examples; where each prompt has one, these are the same batches.
TEST(Polychromic, GrpoTakesTheBatchesOfFineTuningWherePromptsHaveOneResponse) {
  const auto dir = fresh_folder("single");
  const Overrides two_phases = with(kGrpo, {"grpo.start_step=3", "grpo.rewards=length"});
  SmallPolychromic several(dir / "several", two_phases);
  SmallPolychromic none(dir / "none", {"polychromic.objective=none", "polychromic.max_generation_length=100"});
  SmallPolychromic single(dir / "single", with(two_phases, {one_response_each(dir), "chat.val_share=0"}));
  for (int64_t step = 1; step <= 2; ++step) {
    EXPECT_EQ(several.task.next_batch_digest(2), none.task.next_batch_digest(2));
    EXPECT_NE(several.task.next_batch_digest(2), several.task.next_batch_digest(3)) << "of the two phases";
    EXPECT_EQ(single.task.next_batch_digest(2), single.task.next_batch_digest(3)) << "of the two phases";
    for (SmallPolychromic* run : {&several, &none, &single}) run->task.load_batch(step, 1);
  }
}

// Right answers that other records of the prompt show are right, too.
TEST(Polychromic, RewardsKnowAllRightAnswersOfAPrompt) {
  const auto dir = fresh_folder("pooled");
  const data::ChatEncoder chat = data::open_chat_encoder(answers_folder() / "data", {.name = "plain"});
  // Answers of one token to one prompt, and the mean of what they are worth.
  const auto sampled = [&](const std::vector<std::string>& responses) {
    std::string lines;
    for (const std::string& text : responses) lines += R"({"prompt": "say", "response": ")" + text + "\"}\n";
    write_text_atomic(dir / "train.jsonl", lines);
    SmallPolychromic run(
        dir, with(kGrpo, {"data.train=" + (dir / "train.jsonl").string(), "chat.val_share=0", "grpo.rewards=answer",
                          "grpo.num_generations=64", "grpo.max_completion_length=1", "train.global_batch_size=1"}));
    run.task.load_batch(1, 1);
    const std::vector<at::Tensor> inputs = run.task.step_inputs();
    std::vector<std::string> texts;
    const at::Tensor answered = inputs[3].masked_select(inputs[3].ne(data::kIgnoreLabel));
    for (int64_t i = 0; i < answered.numel(); ++i) {
      texts.push_back(chat.encoder().decode({static_cast<int32_t>(answered[i].item<int64_t>())}));
    }
    const auto& names = run.task.metric_names();
    const auto place = std::find(names.begin(), names.end(), "reward/answer") - names.begin();
    return std::pair(texts, inputs[6][place].item<double>());
  };
  const auto [texts, nothing] = sampled({"none of these"});
  ASSERT_EQ(texts.size(), 64u);
  EXPECT_EQ(nothing, 0);
  std::vector<std::string> letters;
  for (const std::string& text : texts) {
    const bool is_new = std::none_of(letters.begin(), letters.end(),
                                     [&](const auto& one) { return objectives::same_answer(one, text); });
    if (text.size() == 1 && std::isalpha(static_cast<unsigned char>(text[0])) && is_new) letters.push_back(text);
  }
  ASSERT_GE(letters.size(), 2u);
  const std::vector<std::string> right{"none of these", letters[0], letters[1]};
  const auto found = std::count_if(texts.begin(), texts.end(), [&](const std::string& text) {
    return objectives::same_answer(text, letters[0]) || objectives::same_answer(text, letters[1]);
  });
  const auto [again, reward] = sampled(right);
  EXPECT_EQ(again, texts) << "the same prompt at the same place";
  EXPECT_EQ(reward, static_cast<double>(found) / 64);
}

// Two ranks keep what one rank keeps, so that a run goes on with another number of them in the middle of a batch.
TEST(Polychromic, AnswersToLearnFromAgainAreKeptForAnyNumberOfRanks) {
  const auto dir = fresh_folder("runs");
  const Overrides more = with(kAgain, {"train.steps=2", "train.checkpoint_every=2"});
  SmallPolychromic one(dir / "one", more);
  one.trainer.start_fresh();
  one.trainer.run();
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(2)) comms.push_back(std::move(comm));
  test::on_threads(2, [&](int rank) {
    SmallPolychromic run(dir / "two", more, comms[static_cast<size_t>(rank)]);
    run.trainer.start_fresh();
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
  });
  const auto found = checkpoint::find_latest_valid(dir / "two" / "small");
  ASSERT_TRUE(found);
  SmallPolychromic next(dir / "two", with(more, {"train.steps=4"}));
  next.trainer.resume(found->dir, found->meta.info);
  const auto want = one.tensors(), got = next.tensors();
  for (const char* name : {"answers.ids", "answers.labels"})
    EXPECT_TRUE(at::equal(want.at(name), got.at(name))) << name;
  for (const char* name : {"answers.log_p", "answers.advantages"}) {
    EXPECT_TRUE(at::allclose(want.at(name), got.at(name), 1e-3, 1e-4)) << name;
  }
  EXPECT_GT(want.at("answers.advantages").abs().max().item<double>(), 0);
  EXPECT_EQ(next.trainer.run(), train::Outcome::finished);
  std::vector<double> sampled;
  for (const auto& line : read_metrics(dir / "two")) {
    if (line.contains("train/reward_updates")) sampled.push_back(line.value("train/reward_steps", 0.0));
  }
  EXPECT_EQ(sampled.back(), 1) << "steps 3 and 4: one goes on with the answers, one has new ones";
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

struct PolychromicVariant {
  std::string name;
  Overrides overrides;
};
class PolychromicLife : public ::testing::TestWithParam<PolychromicVariant> {};

TEST_P(PolychromicLife, ResumesBitIdentically) {
  const auto dir = fresh_folder("runs");
  const Overrides more = with(GetParam().overrides, {"train.eval_every=4"});
  SmallPolychromic straight(dir / "straight", more);
  straight.trainer.start_fresh();
  ASSERT_EQ(straight.trainer.run(), train::Outcome::finished);

  const Overrides half = with(more, {"train.checkpoint_every=5"});
  {
    SmallPolychromic first(dir / "resumed", half);
    first.trainer.start_fresh();
    first.trainer.run();
  }
  fs::remove_all(checkpoint::list_checkpoints(dir / "resumed" / "small").front());
  SmallPolychromic second(dir / "resumed", half);
  const auto found = checkpoint::find_latest_valid(dir / "resumed" / "small");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->meta.step, 5);
  second.trainer.resume(found->dir, found->meta.info);
  EXPECT_EQ(second.trainer.run(), train::Outcome::finished);
  const auto want = straight.tensors(), got = second.tensors();
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
  EXPECT_EQ(metrics_without_timing(dir / "straight"), metrics_without_timing(dir / "resumed"));
}

TEST_P(PolychromicLife, TwoRanksTrainTheSame) {
  const auto dir = fresh_folder("runs");
  const Overrides more = with(GetParam().overrides, {"train.micro_batch_size=4", "lora.dropout=0"});
  SmallPolychromic one(dir / "one", more);
  one.trainer.start_fresh();
  one.trainer.run();
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(2)) comms.push_back(std::move(comm));
  test::on_threads(2, [&](int rank) {
    SmallPolychromic run(dir / "two", more, comms[static_cast<size_t>(rank)]);
    run.trainer.start_fresh();
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
  });
  const auto a = read_metrics(dir / "one"), b = read_metrics(dir / "two");
  ASSERT_EQ(a.size(), b.size());
  // Sampled answers follow the weights to the bit, so that rounding parts the runs some steps later: the first window.
  for (const auto& [key, value] : a.front().items()) {
    if (!key.starts_with("train/") || key == "train/update_ratio") continue;
    const double want = value.get<double>(), got = b.front().at(key).get<double>();
    EXPECT_NEAR(got, want, 2e-3 * std::max(1.0, std::abs(want))) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, PolychromicLife,
    ::testing::Values(
        PolychromicVariant{"lora", with(kSemantic, {"lora.dropout=0.1"})}, PolychromicVariant{"full", {"lora.r=0"}},
        PolychromicVariant{"compat", {"polychromic.objective=compat"}},
        PolychromicVariant{"packed", {"chat.packing=true", "chat.pool_batches=2"}},
        PolychromicVariant{"marginal", with(kSemantic, {"polychromic.objective=marginal",
                                                        "polychromic.compute_diversity_every_n_steps=2"})},
        PolychromicVariant{"pairs",
                           {"polychromic.n_generations=2", "polychromic.diversity_metric=distinct", "hf.recompute=true",
                            "lora.rslora=true"}},
        PolychromicVariant{"grpo", with(kGrpo, {"grpo.diversity_weight=0.1"})},
        PolychromicVariant{"again", with(kAgain, {"grpo.epsilon=0.01"})},
        PolychromicVariant{"nf4", with(kSemantic, {"hf.quantize=nf4", "lora.dropout=0.1", "lora.targets=q_proj,up_proj",
                                                   "grpo.start_step=5", "grpo.rewards=length", "grpo.num_generations=3",
                                                   "grpo.max_completion_length=8", "grpo.beta=0.05"})},
        // The checkpoint is of the phase before.
        PolychromicVariant{"before",
                           {"grpo.start_step=7", "grpo.rewards=answer,length", "grpo.num_generations=3",
                            "grpo.max_completion_length=8"}},
        PolychromicVariant{"phases", with(kSemantic, {"grpo.start_step=5", "grpo.rewards=relevance,length",
                                                      "grpo.num_generations=3", "grpo.max_completion_length=8",
                                                      "grpo.beta=0.05", "grpo.mask_truncated_completions=true",
                                                      "grpo.reward_combination=separately_normalised"})}),
    [](const auto& info) { return info.param.name; });

// What a checkpoint of an adapter holds, and that frozen weights stay.
TEST(Polychromic, TrainsTheAdapterAlone) {
  const auto dir = fresh_folder("runs");
  SmallPolychromic run(dir, {"train.steps=3"});
  std::map<std::string, at::Tensor> before;
  for (const auto& item : run.task.lm().model->named_parameters()) before[item.key()] = item.value().detach().clone();
  run.trainer.start_fresh();
  run.trainer.run();
  size_t changed = 0;
  for (const auto& item : run.task.lm().model->named_parameters()) {
    const bool adapter = item.key().find(".lora.") != std::string::npos;
    EXPECT_EQ(at::equal(before.at(item.key()), item.value()), !adapter) << item.key();
    changed += adapter ? 1 : 0;
  }
  EXPECT_EQ(changed, 2u * 4 * 2);
  run.task.write_files(dir / "small");
  const auto found = checkpoint::find_latest_valid(dir / "small");
  ASSERT_TRUE(found);
  const checkpoint::ModelWeights weights = checkpoint::load_weights(found->dir);
  EXPECT_EQ(weights.raw.size(), changed);
  for (const auto& [name, tensor] : weights.raw) EXPECT_NE(name.find(".lora."), std::string::npos) << name;
  for (const char* file : {"hf/config.json", "hf/tokenizer.json", "hf/tokenizer_config.json"}) {
    EXPECT_TRUE(fs::exists(dir / "small" / file)) << file;
  }
}

// A run trained on copies of the model's folder and the tokenizer's, which may then be changed.
fs::path run_on_copies(const fs::path& dir, const fs::path& model, const Overrides& more) {
  fs::copy(model, dir / "model", fs::copy_options::recursive);
  fs::create_directory(dir / "tokens");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(answers_folder() / "data" / name, dir / "tokens" / name);
  }
  Overrides all{"train.steps=1", "optim.warmup_steps=0", "hf.model=" + (dir / "model").string(),
                "hf.tokenizer=" + (dir / "tokens").string()};
  all.insert(all.end(), more.begin(), more.end());
  SmallPolychromic run(dir, all);
  run.trainer.start_fresh();
  run.trainer.run();
  run.task.write_files(dir / "small");
  return dir / "small";
}

TEST(Polychromic, RunsOpenWithoutTheFoldersThatTheyCameFrom) {
  for (const char* adapter : {"lora.r=4", "lora.r=0"}) {
    const auto dir = fresh_folder("moved");
    const fs::path run = run_on_copies(dir, answers_folder() / "model", {adapter});
    const tasks::CausalInference before = tasks::open_causal_checkpoint(run, {}, "raw");
    EXPECT_EQ(before.lm.model->limits().max_tokens, 128) << "answers as long as the model allows, not the training";
    fs::remove_all(dir / "model");
    fs::remove_all(dir / "tokens");
    const tasks::CausalInference after = tasks::open_causal_checkpoint(run, {}, "raw");
    const auto wanted = before.lm.model->named_parameters();
    for (const auto& item : after.lm.model->named_parameters()) {
      EXPECT_TRUE(at::equal(item.value(), wanted[item.key()])) << adapter << " " << item.key();
    }
  }
}

TEST(Polychromic, AnAdapterIsOpenedBesideItsOwnModelAlone) {
  const auto dir = fresh_folder("frozen");
  const fs::path base = test::source_dir() + "/tests/fixtures/qwen3_tied";
  const fs::path run = run_on_copies(dir, base, {"hf.weights=load"});
  tasks::open_causal_checkpoint(run, {}, "raw");
  const fs::path weights = dir / "model" / "model.safetensors";
  std::string bytes = read_text(weights, ExitCode::data);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text_atomic(weights, bytes);
  test::expect_error(ExitCode::checkpoint, {"are not those that the adapter", "hf.model=FOLDER"},
                     [&] { tasks::open_causal_checkpoint(run, {}, "raw"); });
  tasks::open_causal_checkpoint(run, {"hf.model=" + base.string()}, "raw");

  fs::remove_all(dir / "model");
  commands::ExportOptions options;
  options.checkpoint = run.string();
  options.to = "peft";
  options.out = (dir / "out").string();
  test::expect_error(ExitCode::checkpoint, {"was trained beside the model in", "none here", "--base"},
                     [&] { commands::run_export(options); });
  options.base = base.string();
  EXPECT_EQ(commands::run_export(options), 0);
  EXPECT_TRUE(fs::exists(dir / "out" / "adapter_config.json"));
}

// How transformers writes and stops stays that of the model that was fine-tuned, wherever its folder is now.
TEST(Polychromic, ExportKeepsWhatStandsBesideTheWeights) {
  const auto dir = fresh_folder("export");
  const fs::path model = dir / "base";
  fs::copy(answers_folder() / "model", model, fs::copy_options::recursive);
  const std::string generation = R"({"eos_token_id": [2, 5], "top_k": 20})", jinja = "{{ messages[0].content }}";
  write_text_atomic(model / "generation_config.json", generation);
  const fs::path run = run_on_copies(dir, model, {"lora.r=0"});
  write_text_atomic(dir / "tokens" / "chat_template.jinja", jinja);
  SmallPolychromic again(
      dir, {"lora.r=0", "hf.model=" + (dir / "model").string(), "hf.tokenizer=" + (dir / "tokens").string()});
  again.task.write_files(run);
  const std::string tokens = read_text(dir / "tokens" / "tokenizer_config.json", ExitCode::data);
  fs::remove_all(dir / "model");
  fs::remove_all(dir / "tokens");
  commands::ExportOptions options;
  options.checkpoint = run.string();
  options.to = "hf";
  options.out = (dir / "out").string();
  EXPECT_EQ(commands::run_export(options), 0);
  const auto text = [&](const char* name) { return read_text(dir / "out" / name, ExitCode::data); };
  EXPECT_EQ(text("generation_config.json"), generation);
  EXPECT_EQ(text("chat_template.jinja"), jinja);
  EXPECT_EQ(text("tokenizer_config.json"), tokens);
  EXPECT_EQ(nlohmann::json::parse(text("config.json")).at("eos_token_id"), nlohmann::json::array({2, 5}));
}

// eval --report keeps each prompt's answers, and what is made of them.
TEST(Polychromic, EvaluatesIntoAReport) {
  const auto dir = fresh_folder("report");
  const fs::path run = run_on_copies(dir, answers_folder() / "model", {"lora.r=4"});
  commands::EvalOptions options;
  options.checkpoint = run.string();
  options.data = (answers_folder() / "data" / "test.jsonl").string();
  options.overrides = {"eval.answers=3", "eval.answer_tokens=8"};
  options.report = (dir / "report").string();
  EXPECT_EQ(commands::run_eval(options), 0);
  const std::string file = (dir / "report" / "eval.json").string();
  const commands::ReportedEvaluation read = commands::parse_evaluation(read_text(file, ExitCode::data), file);
  ASSERT_EQ(read.prompts.size(), 10u);
  for (const commands::ReportedPrompt& prompt : read.prompts) {
    EXPECT_EQ(prompt.sampled.size(), 3u);
    EXPECT_EQ(prompt.right.size(), 3u);
    EXPECT_GE(prompt.answers.size(), 4u);
    EXPECT_EQ(prompt.values.count("pass@3"), 1u);
  }
  ASSERT_TRUE(read.loss);
  EXPECT_GT(*read.loss, 0);
  // Of as many responses to each prompt their mean is the loss of all, whose responses differ little in length.
  double losses = 0;
  for (const commands::ReportedPrompt& prompt : read.prompts) losses += prompt.values.at("response_loss") / 10;
  EXPECT_NEAR(losses, *read.loss, 0.05 * *read.loss);
  for (const char* name : {"report.md", "answers.html", "front.svg"}) EXPECT_TRUE(fs::exists(dir / "report" / name));
  test::expect_error(ExitCode::usage, {"holds eval.json already", "--report"}, [&] { commands::run_eval(options); });
  options.overrides = {"eval.answers=0"};
  test::expect_error(ExitCode::usage, {"--report", "eval.answers is 0"}, [&] { commands::run_eval(options); });
}

TEST(Polychromic, CrossEntropyFallsAndRewardsRise) {
  const auto dir = fresh_folder("runs");
  SmallPolychromic learns(dir / "learns", {"train.steps=30", "train.log_every=5", "lora.r=0", "optim.warmup_steps=2"});
  learns.trainer.start_fresh();
  learns.trainer.run();
  const auto of = [](const nlohmann::json& line, const char* key) { return line.at(key).get<double>(); };
  auto lines = read_metrics(dir / "learns");
  EXPECT_LT(of(lines[5], "train/cross_entropy"), 0.6 * of(lines[0], "train/cross_entropy"));
  // A window's time is that of its own steps, the last ones, too: what is left when all of their answers are sampled
  // holds what the device did. Of a window that misses a sampling less would be left.
  for (size_t i = 0; i < 6; ++i) {
    const auto sum = [&](std::initializer_list<const char*> parts) {
      double all = 0;
      for (const char* part : parts) {
        const double ms = of(lines[i], (std::string("perf/") + part).c_str());
        EXPECT_GE(ms, 0) << part << ", window " << i;
        all += ms;
      }
      return all;
    };
    const double sampled = sum({"merge_ms", "prefill_ms", "decode_ms", "encode_ms", "diversity_ms"}),
                 step = of(lines[i], "perf/step_ms"), train = of(lines[i], "perf/train_ms");
    EXPECT_NEAR(sampled + train, step, 1e-9 * step) << "window " << i;
    EXPECT_GE(train, sum({"forward_ms", "backward_ms", "optimizer_ms"})) << "window " << i;
    for (const char* part : {"prefill_ms", "decode_ms", "diversity_ms", "prefill_tokens_per_s", "decode_tokens_per_s",
                             "forward_ms", "backward_ms", "optimizer_ms"}) {
      EXPECT_GT(of(lines[i], (std::string("perf/") + part).c_str()), 0) << part << ", window " << i;
    }
  }

  // Longer answers are worth more, up to a length.
  SmallPolychromic rewarded(dir / "rewarded", with(kGrpo, {"train.steps=40", "train.log_every=10", "lora.r=0",
                                                           "grpo.rewards=length", "grpo.max_completion_length=24"}));
  rewarded.trainer.start_fresh();
  rewarded.trainer.run();
  lines = read_metrics(dir / "rewarded");
  EXPECT_GT(of(lines[3], "train/reward"), of(lines[0], "train/reward"));
  EXPECT_FALSE(lines[0].contains("train/cross_entropy")) << "of steps that have none";
}

TEST(Polychromic, RefusesWhatDoesNotFit) {
  const auto dir = fresh_folder("refused");
  const auto refuse = [&](ExitCode code, const std::vector<std::string>& parts, const Overrides& overrides) {
    test::expect_error(code, parts, [&] { SmallPolychromic run(dir, overrides); });
  };
  refuse(ExitCode::checkpoint, {"no folder of a model"}, {"hf.model=" + (dir / "none").string()});
  refuse(ExitCode::checkpoint, {"holds no weights"}, {"hf.weights=load"});
  refuse(ExitCode::usage, {"hf.positions = 10", "too short"}, {"hf.positions=10"});
  refuse(ExitCode::usage, {"max_position_embeddings = 128"}, {"chat.max_length=500"});
  refuse(ExitCode::usage, {"chat.packing", "grpo.start_step = 1"}, with(kGrpo, {"chat.packing=true"}));
  refuse(ExitCode::usage, {"'answers'", "answer"}, with(kGrpo, {"grpo.rewards=answers"}));
  refuse(ExitCode::usage, {"twice"}, with(kGrpo, {"grpo.rewards=length,length"}));
  refuse(ExitCode::usage, {"no weight behind the star"}, with(kGrpo, {"grpo.rewards=length*x"}));
  std::string prompts;
  for (int i = 0; i < 40; ++i) prompts += "{\"prompt\": \"say " + std::to_string(i) + "\"}\n";
  write_text_atomic(dir / "prompts.jsonl", prompts);
  const Overrides silent = with(kGrpo, {"data.train=" + (dir / "prompts.jsonl").string(), "chat.val_share=0.2"});
  refuse(ExitCode::data, {"have neither a response nor right answers", "'answer'"},
         with(silent, {"grpo.rewards=answer"}));
  refuse(ExitCode::usage, {"train.early_stop_evals", "validation", "have none"},
         with(silent, {"grpo.rewards=length", "train.early_stop_evals=2", "train.eval_every=2"}));
  EXPECT_FALSE(SmallPolychromic(dir, with(silent, {"grpo.rewards=length"})).task.can_evaluate());
  // Nothing to evaluate, with what asks for it.
  fs::create_directories(dir / "unvalidated");
  fs::copy_file(answers_folder() / "data" / "train.jsonl", dir / "unvalidated" / "train.jsonl");
  const std::string folder = "data.train=" + (dir / "unvalidated").string();
  refuse(ExitCode::usage, {"train.eval_every needs prompts", "has no val.jsonl beside its train.jsonl", "data.test"},
         {folder, "train.eval_every=2"});
  refuse(ExitCode::usage, {"train.eval_every needs prompts", "chat.val_share is 0; set it to 0.1"},
         {folder + "/train.jsonl", "chat.val_share=0", "train.eval_every=2", "train.keep_best=true"});
  EXPECT_FALSE(SmallPolychromic(dir, {folder}).task.can_evaluate());
  fs::copy_file(answers_folder() / "data" / "val.jsonl", dir / "unvalidated" / "validation.jsonl");
  EXPECT_TRUE(SmallPolychromic(dir, {folder, "train.eval_every=2", "chat.val_share=0"}).task.can_evaluate());
  refuse(ExitCode::usage, {"no layer is called 'up'"}, {"lora.targets=up"});
  refuse(ExitCode::data, {"is also that of"}, {"data.test=" + (answers_folder() / "data" / "train.jsonl").string()});
  // Another id does not make another prompt.
  for (const char* id : {"a", "b"}) {
    std::string lines;
    for (int i = 0; i < 20; ++i) {
      lines += cat(R"({"id": ")", id, i, R"(", "prompt": "say )", i, R"(", "response": "x"})", "\n");
    }
    write_text_atomic(dir / cat(id, ".jsonl"), lines);
  }
  refuse(ExitCode::data, {"b.jsonl", "is also that of", "a.jsonl"},
         {"data.train=" + (dir / "a.jsonl").string(), "data.test=" + (dir / "b.jsonl").string(), "chat.id_field=id"});
  refuse(ExitCode::checkpoint, {"no folder of an adapter"}, {"lora.adapter=" + dir.string()});
  refuse(ExitCode::checkpoint, {"no folder of a model"},
         {"polychromic.diversity_metric=semantic", "polychromic.diversity_encoder_model=" + (dir / "none").string()});
  fs::create_directories(dir / "small_vocabulary");
  std::string text = read_text(answers_folder() / "model" / "config.json", ExitCode::data);
  write_text_atomic(dir / "small_vocabulary" / "config.json", text.replace(text.find("264"), 3, "100"));
  refuse(ExitCode::usage, {"the tokenizer of", "knows 100"}, {"hf.model=" + (dir / "small_vocabulary").string()});
}

}  // namespace
}  // namespace hrm

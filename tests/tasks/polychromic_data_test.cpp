// What the polychromic task trains on: epochs, prompts and their right answers, and the data and folders that it
// refuses.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "hrm/base/file.h"
#include "support/expect_error.h"
#include "tasks/polychromic_steps.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using testing::answers_folder;
using testing::fresh_folder;
using testing::kGrpo;
using testing::Overrides;
using testing::SmallPolychromic;
using testing::with;

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
      run.task.prepare_step(3 * epoch + step);
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
    for (SmallPolychromic* run : {&several, &none, &single}) {
      run->task.load_batch(step, 1);
      run->task.prepare_step(step);
    }
  }
}

// Right answers that other records of the prompt show are right, too.
TEST(Polychromic, RewardsKnowAllRightAnswersOfAPrompt) {
  const auto dir = fresh_folder("pooled");
  const data::ChatEncoder chat =
      data::open_chat_encoder(answers_folder() / "data", {.name = config::ChatTemplateKind::plain});
  // Answers of one token to one prompt, and the mean of what they are worth.
  const auto sampled = [&](const std::vector<std::string>& responses) {
    std::string lines;
    for (const std::string& text : responses) lines += R"({"prompt": "say", "response": ")" + text + "\"}\n";
    write_text_atomic(dir / "train.jsonl", lines);
    SmallPolychromic run(
        dir, with(kGrpo, {"data.train=" + (dir / "train.jsonl").string(), "chat.val_share=0", "grpo.rewards=answer",
                          "grpo.num_generations=64", "grpo.max_completion_length=1", "train.global_batch_size=1"}));
    run.task.load_batch(1, 1);
    run.task.prepare_step(1);
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

TEST(Polychromic, RefusesWhatDoesNotFit) {
  const auto dir = fresh_folder("refused");
  const auto refuse = [&](ExitCode code, const std::vector<std::string>& parts, const Overrides& overrides) {
    test::expect_error(code, parts, [&] { SmallPolychromic run(dir, overrides); });
  };
  refuse(ExitCode::checkpoint, {"not a folder of a model"}, {"hf.model=" + (dir / "none").string()});
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
  refuse(ExitCode::checkpoint, {"not a folder of an adapter"}, {"lora.adapter=" + dir.string()});
  refuse(ExitCode::checkpoint, {"not a folder of a model"},
         {"polychromic.diversity_metric=semantic", "polychromic.diversity_encoder_model=" + (dir / "none").string()});
  fs::create_directories(dir / "small_vocabulary");
  std::string text = read_text(answers_folder() / "model" / "config.json", ExitCode::data);
  write_text_atomic(dir / "small_vocabulary" / "config.json", text.replace(text.find("264"), 3, "100"));
  refuse(ExitCode::usage, {"the tokenizer of", "knows 100"}, {"hf.model=" + (dir / "small_vocabulary").string()});
}

}  // namespace
}  // namespace hrm

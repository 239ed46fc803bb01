// Answers of one model to one prompt are the same wherever they are asked for: 'eval' and 'generate' make prompts as
// the training did, and end answers alike.
#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <sstream>

#include "commands/command_output.h"
#include "hrm/base/file.h"
#include "hrm/commands/commands.h"
#include "hrm/data/chat_dataset.h"
#include "hrm/tasks/answer_sampler.h"
#include "hrm/tasks/causal_inference.h"
#include "support/expect_error.h"
#include "support/overrides.h"
#include "train/small_polychromic.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Overrides;
using testing::answers_folder;
using testing::fresh_folder;
using testing::printed;
using testing::SmallPolychromic;

constexpr int64_t kSeed = 3, kAnswerTokens = 12, kSamples = 2, kPrompts = 12;

std::string trimmed(const std::string& text) {
  const char* space = " \t\r\n\f\v";
  const size_t first = text.find_first_not_of(space);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(space) - first + 1);
}

// A run whose prompts have an instruction, a place for a member, and a name of their own, and whose responses end with
// `end`.
struct Asked {
  fs::path dir, data, run;

  explicit Asked(const std::string& name, const std::string& end) : dir(fresh_folder(name)) {
    data = dir / "data.jsonl";
    std::string lines;
    for (int64_t i = 0; i < kPrompts; ++i) {
      lines += cat(R"({"question": "say )", i, R"(", "topic": "t)", i % 3, R"(", "style": ")", i % 2 ? "loud" : "low",
                   R"(", "response": "x"})", "\n");
    }
    write_text_atomic(data, lines);
    SmallPolychromic trained(
        dir,
        {"run.seed=" + std::to_string(kSeed), "chat.template=custom", "chat.prompt_template={topic}: {prompt}>",
         "chat.response_template={response}" + end, "chat.prompt_field=question", "chat.instruction={style} {prompt}",
         "chat.val_share=0", "data.train=" + data.string(), "optim.lr=1e-9", "optim.warmup_steps=0", "train.steps=1"});
    trained.trainer.start_fresh();
    trained.trainer.run();
    trained.task.write_files(dir / "small");
    run = dir / "small";
  }

  struct Answer {
    std::string text;
    bool finished = false;
    std::string finish;  // of generate alone
  };

  std::vector<Answer> evaluated(const std::string& report) const {
    commands::EvalOptions options;
    options.checkpoint = run.string();
    options.data = data.string();
    options.overrides = {cat("eval.answers=", kSamples), cat("eval.answer_tokens=", kAnswerTokens),
                         "eval.answer_temperature=1", "eval.answer_top_p=1"};
    options.report = (dir / report).string();
    printed([&] { return commands::run_eval(options); });
    std::vector<Answer> out;
    const json read = json::parse(read_text(dir / report / "eval.json", ExitCode::data));
    for (const json& prompt : read.at("samples")) {
      for (size_t i = 0; i < prompt.at("sampled").size(); ++i) {
        out.push_back({prompt.at("sampled")[i].get<std::string>(), prompt.at("finished")[i].get<bool>(), ""});
      }
    }
    return out;
  }

  std::vector<Answer> generated(const std::string& input) const {
    commands::GenerateOptions options;
    options.checkpoint = run.string();
    options.input = input;
    options.max_new_tokens = kAnswerTokens;
    options.temperature = 1;
    options.samples = kSamples;
    options.seed = kSeed;
    options.device = "cpu";
    options.format = "jsonl";
    std::istringstream lines(printed([&] { return commands::run_generate(options); }));
    std::vector<Answer> out;
    for (std::string line; std::getline(lines, line);) {
      const json answer = json::parse(line);
      const std::string finish = answer.at("finish");
      out.push_back({trimmed(answer.at("text")), finish != "length", finish});
    }
    return out;
  }

  // The same of both commands.
  std::vector<Answer> answers(const std::string& report) const {
    const std::vector<Answer> one = evaluated(report), other = generated(data.string());
    EXPECT_EQ(one.size(), static_cast<size_t>(kPrompts * kSamples));
    EXPECT_EQ(one.size(), other.size());
    for (size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
      EXPECT_EQ(one[i].text, other[i].text) << report << ", answer " << i;
      EXPECT_EQ(one[i].finished, other[i].finished) << report << ", answer " << i;
    }
    return other;
  }
};

TEST(Answers, EvalAndGenerateAskAndEndAlike) {
  const Asked asked("free", "never to be seen");
  const auto free = asked.answers("free");
  // A letter that an answer has in its middle, as what ends one.
  size_t row = 0, at = 0;
  for (size_t i = 0; i < free.size() && at == 0; ++i) {
    for (size_t c = 1; c < free[i].text.size(); ++c) {
      if (std::isalnum(static_cast<unsigned char>(free[i].text[c])) == 0) continue;
      row = i;
      at = free[i].text.find(free[i].text[c]);
      if (at > 0) break;
    }
  }
  ASSERT_GT(at, 0U);
  const Asked ended("ended", std::string(1, free[row].text[at]));
  const auto cut = ended.answers("ended");
  EXPECT_EQ(cut[row].text, trimmed(free[row].text.substr(0, at)));
  EXPECT_EQ(cut[row].finish, "stop");

  // An end that only the model's own files know.
  const tasks::CausalInference loaded = tasks::open_causal_checkpoint(asked.run, {}, "raw");
  const data::ChatDataset data(asked.data, *loaded.chat, data::chat_data_options(loaded.config, true));
  const auto ids = [&](const std::vector<int64_t>& eos_ids) {
    tasks::AnswerSampler sampler(*loaded.lm.model, loaded.lm.lora.get(), *loaded.chat, eos_ids, 8, 0, false);
    return sampler
        .sample(
            {data[0].prompt_ids},
            {.samples = 1, .max_new_tokens = kAnswerTokens, .sampling = {.temperature = 1}, .seed = kSeed, .keys = {0}})
        .ids[0];
  };
  const std::vector<int32_t> whole = ids({});
  ASSERT_GT(whole.size(), 4U);
  const auto end = std::find(whole.begin(), whole.end(), whole[3]) + 1;
  EXPECT_EQ(ids({whole[3]}), std::vector<int32_t>(whole.begin(), end)) << "with the id that ended it";
  write_text_atomic(asked.run / "hf" / "generation_config.json", cat(R"({"eos_token_id": [)", whole[3], "]}"));
  const auto with_end = asked.answers("eos");
  EXPECT_EQ(with_end[0].finish, "eos");
  EXPECT_LT(with_end[0].text.size(), free[0].text.size());
}

TEST(Answers, GenerateSaysWhatARecordLacks) {
  const Asked asked("run", "##");
  const auto refused = [&](const std::string& line, const std::vector<std::string>& parts) {
    write_text_atomic(asked.dir / "other.jsonl", line + "\n");
    test::expect_error(ExitCode::data, parts, [&] { asked.generated((asked.dir / "other.jsonl").string()); });
  };
  refused(R"({"question": "q", "topic": "t"})", {"other.jsonl:1", "has no 'style'", "a place"});
  refused(R"({"question": "q", "style": "s"})", {"other.jsonl:1", "has no 'topic'", "a place"});
  refused(R"({"prompt": "q", "topic": "t", "style": "s"})", {"other.jsonl:1", "neither 'messages' nor 'question'"});
  write_text_atomic(asked.dir / "other.txt", "q\n");
  test::expect_error(ExitCode::data, {"other.txt:1", "a place for 'topic'", "'question' and 'topic'"},
                     [&] { asked.generated((asked.dir / "other.txt").string()); });
}

}  // namespace
}  // namespace hrm

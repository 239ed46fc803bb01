// The settings `chat.*` of a configuration, as they reach records: names of members, what stands around them, and what
// is dropped.
#include "data/chat/chat_support.h"
#include "hrm/config/load.h"
#include "hrm/data/chat_open.h"

namespace hrm::data {
namespace {

using test::TempDir;
using Ids = std::vector<int32_t>;
using Overrides = std::vector<std::string>;

class ChatSettings : public ::testing::Test {
 protected:
  // Records as a run with these settings reads them.
  ChatDataset read(const std::string& lines, const Overrides& settings = {}) const {
    const config::Config config = configuration(settings);
    write_text(dir_ / "records.jsonl", lines);
    return {dir_ / "records.jsonl", open_chat_encoder(config), chat_data_options(config, /*need_response=*/true)};
  }
  Ids ids(const std::string& text) const { return open_chat_encoder(configuration({})).encoder().encode(text); }
  Ids with_end(const std::string& text) const {
    Ids all = ids(text);
    all.push_back(kImEnd);
    return all;
  }

 private:
  config::Config configuration(const Overrides& settings) const {
    Overrides all{"task=polychromic", "hf.model=none", "hf.tokenizer=" + folder_.string(), "polychromic.objective=none",
                  "chat.template=plain"};
    all.insert(all.end(), settings.begin(), settings.end());
    return config::load_config({}, all).config;
  }

  const TempDir dir_;
  const std::filesystem::path folder_ = chat_folder(dir_ / "tokenizer", kQwenConfig);
};

constexpr const char* kUsual = R"({"prompt": "two and two", "response": "four", "answers": ["4", "four"]})";

TEST_F(ChatSettings, TheConversationMayHaveAnotherName) {
  const std::string chosen = R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}])";
  const std::string other = R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "no"}])";
  const std::string line = R"({"chosen": )" + chosen + R"(, "messages": )" + other + R"(, "rejected": )" + other + "}";
  EXPECT_EQ(read(line)[0].response_ids, with_end("no"));
  EXPECT_EQ(read(line, {"chat.messages_field=chosen"})[0].response_ids, with_end("yo"));
}

// A record under other names, beside decoys under the usual ones, is the same record.
TEST_F(ChatSettings, MembersMayHaveOtherNames) {
  const ChatDataset usual = read(kUsual);
  ASSERT_EQ(usual.size(), 1);
  EXPECT_EQ(usual[0].prompt_ids, ids("two and two"));
  EXPECT_EQ(usual[0].response_ids, with_end("four"));
  EXPECT_EQ(usual[0].answers, (std::vector<std::string>{"4", "four"}));
  const struct {
    Overrides settings;
    std::string line;
  } cases[] = {
      {{"chat.prompt_field=question"},
       R"({"question": "two and two", "prompt": "x", "response": "four", "answers": ["4", "four"]})"},
      {{"chat.response_field=reply"},
       R"({"prompt": "two and two", "response": "x", "reply": "four", "answers": ["4", "four"]})"},
      {{"chat.answers_field=right"},
       R"({"prompt": "two and two", "response": "four", "answers": ["x"], "right": ["4", "four"]})"},
      {{"chat.prompt_field=q", "chat.response_field=a", "chat.answers_field=all"},
       R"({"q": "two and two", "a": "four", "all": ["4", "four"], "prompt": "x", "response": "y", "answers": ["z"]})"},
  };
  for (const auto& [settings, line] : cases) {
    const ChatDataset renamed = read(line, settings);
    ASSERT_EQ(renamed.size(), 1) << line;
    EXPECT_EQ(renamed[0].prompt_ids, usual[0].prompt_ids) << line;
    EXPECT_EQ(renamed[0].response_ids, usual[0].response_ids) << line;
    EXPECT_EQ(renamed[0].answers, usual[0].answers) << line;
    EXPECT_EQ(renamed[0].key, usual[0].key) << line;
  }
  // Under the usual names alone they are not there.
  expect_error(ExitCode::data, {"records.jsonl:1: has neither 'messages' nor 'question'"},
               [&] { read(kUsual, {"chat.prompt_field=question"}); });
  expect_error(ExitCode::data, {"1 without a response"}, [&] { read(kUsual, {"chat.response_field=reply"}); });
  EXPECT_TRUE(read(kUsual, {"chat.answers_field=right"})[0].answers.empty());
}

TEST_F(ChatSettings, InstructionsStandAroundThePrompt) {
  const std::string line = R"({"prompt": "hi", "response": "yo", "lang": "de"})";
  const ChatDataset plain = read(line), told = read(line, {"chat.instruction=In {lang}: {prompt}!"});
  EXPECT_EQ(plain[0].prompt_ids, ids("hi"));
  EXPECT_EQ(told[0].prompt_ids, ids("In de: hi!"));
  EXPECT_EQ(told[0].prompt, "In de: hi!");
  EXPECT_EQ(told[0].response_ids, plain[0].response_ids);
}

TEST_F(ChatSettings, TemplatesOfOnesOwnMoveTheIds) {
  const std::string line = R"({"prompt": "hi", "response": "yo", "lang": "de"})";
  const Overrides custom{"chat.template=custom", "chat.prompt_template=<{lang}> {prompt}\n",
                         "chat.response_template={response}{eos}"};
  const ChatDataset bare = read(line, custom);
  EXPECT_EQ(bare[0].prompt_ids, ids("<de> hi\n"));
  EXPECT_EQ(bare[0].response_ids, with_end("yo"));
  Overrides quoted = custom;
  quoted.back() = "chat.response_template=\"{response}\"{eos}";
  const ChatDataset around = read(line, quoted);
  EXPECT_EQ(around[0].prompt_ids, bare[0].prompt_ids);
  EXPECT_EQ(around[0].response_ids, with_end("\"yo\""));
  // What ends a response may be a text.
  quoted.back() = "chat.response_template={response}\n##";
  EXPECT_EQ(read(line, quoted)[0].response_ids, ids("yo\n##"));
}

TEST_F(ChatSettings, DuplicatesAreDroppedOnRequest) {
  const std::string lines =
      chat_line("a", "x") + chat_line("a", "y") + chat_line("a", "x") + chat_line("b", "x") + chat_line("a", "x");
  const ChatDataset all = read(lines), once = read(lines, {"chat.deduplicate=true"});
  EXPECT_EQ(all.size(), 5);
  EXPECT_EQ(all.counts().duplicates, 0);
  ASSERT_EQ(once.size(), 3);
  EXPECT_EQ(once.counts().duplicates, 2);
  EXPECT_EQ(once.keys(), (std::vector<std::string>{"a", "a", "b"}));
  EXPECT_EQ(once[1].response, "y");
  EXPECT_EQ(once[2].line, 4);
}

// The settings that docs/data-language.md gives for tweets.
TEST_F(ChatSettings, ReadsTweets) {
  const ChatDataset data = read(
      "{\"tweet_id\": 7, \"tweet\": \"hi {x}\", \"reply\": \"yo\", \"reply_likes\": 3, \"reply_author\": \"z\"}\n"
      "{\"tweet_id\": 7, \"tweet\": \"hi {x}\", \"reply\": \"hey\"}\n",
      {"chat.template=auto", "chat.prompt_field=tweet", "chat.response_field=reply", "chat.id_field=tweet_id",
       "chat.value_field=reply_likes",
       "chat.instruction=Generate an engaging Twitter reply to this tweet:\n\n{tweet}\n\nReply:"});
  ASSERT_EQ(data.size(), 2);
  EXPECT_EQ(data[0].prompt, "Generate an engaging Twitter reply to this tweet:\n\nhi {x}\n\nReply:");
  EXPECT_EQ(data[0].prompt_ids,
            ids("<|im_start|>user\n" + data[0].prompt + "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_EQ(data[0].response_ids, ids("yo<|im_end|>\n"));
  EXPECT_EQ(data.keys(), (std::vector<std::string>{"7", "7"}));
  EXPECT_EQ(data[0].value, 3);
  EXPECT_TRUE(std::isnan(data.values()[1]));
  EXPECT_EQ(data.counts().prompts, 1);
}

}  // namespace
}  // namespace hrm::data

// What a model is asked with a record, as the data of a training says it and as a single prompt does.
#include "hrm/data/chat_prompts.h"

#include "data/chat/chat_support.h"

namespace hrm::data {
namespace {

using test::TempDir;

ChatFields renamed() {
  ChatFields fields;
  fields.prompt = "question";
  return fields;
}

std::string text_of(const ChatPrompts& prompts, const ChatRecord& record) {
  const ChatPrompts::Asked asked = prompts.ask(record);
  return prompts.encoder().encoder().decode(prompts.encoder().prompt_ids(asked.messages, asked.values));
}

TEST(ChatPrompts, TheIdsOfTheTraining) {
  const TempDir dir;
  const ChatEncoder chat = byte_chat({.name = ChatTemplateKind::custom,
                                      .prompt_template = "{bos}{topic}|{prompt}|{n}>",
                                      .response_template = "{response}{eos}"});
  ChatDataOptions options;
  options.fields = renamed();
  options.instruction = "{n}/{who}/{prompt}";
  const std::string line = R"({"question": "q", "response": "r", "topic": "t", "n": 5, "who": "w"})";
  write_text(dir / "t.jsonl", line + "\n");
  const ChatDataset trained(dir / "t.jsonl", chat, options);
  const ChatPrompts prompts(chat, options.fields, options.instruction);
  const ChatRecord record = prompts.read(line);
  const ChatPrompts::Asked asked = prompts.ask(record);
  EXPECT_EQ(chat.prompt_ids(asked.messages, asked.values), trained[0].prompt_ids);
  EXPECT_EQ(text_of(prompts, record), "t|5/w/q|5>");
  expect_error(ExitCode::data, {"has no 'topic'", "a place"},
               [&] { prompts.read(R"({"question": "q", "n": 5, "who": "w"})"); });
  expect_error(ExitCode::data, {"has no 'who'", "a place"},
               [&] { prompts.read(R"({"question": "q", "n": 5, "topic": "t"})"); });
  expect_error(ExitCode::data, {"has neither 'messages' nor 'question'"},
               [&] { prompts.read(R"({"prompt": "q", "n": 5, "topic": "t", "who": "w"})"); });
}

TEST(ChatPrompts, ATextAloneIsThePrompt) {
  const ChatEncoder chat = byte_chat({.name = ChatTemplateKind::custom,
                                      .prompt_template = "{question}={prompt}",
                                      .response_template = "{response}{eos}"});
  const ChatPrompts prompts(chat, renamed(), "ask {question} as {prompt}");
  EXPECT_EQ(text_of(prompts, prompts.record_of("{x}")), "{x}=ask {x} as {x}");
  EXPECT_EQ(text_of(prompts, prompts.record_of("a")), text_of(prompts, prompts.read(R"({"question": "a"})")));
  const ChatPrompts more(chat, {}, "");
  expect_error(ExitCode::data, {"the chat template has a place for 'question'", "'prompt' and 'question'"},
               [&] { more.record_of("a"); });
  const ChatEncoder plain = byte_chat();
  const ChatPrompts instructed(plain, {}, "{who}: {prompt}");
  expect_error(ExitCode::data, {"chat.instruction has a place for 'who'", "'prompt' and 'who'"},
               [&] { instructed.record_of("a"); });
}

// They say all themselves; places of the template are theirs, too.
TEST(ChatPrompts, MessagesHaveNoUseForTheInstruction) {
  const ChatEncoder plain = byte_chat();
  const ChatPrompts instructed(plain, {}, "{who}: {prompt}");
  const std::string messages = R"("messages": [{"role": "user", "content": "u"}])";
  EXPECT_EQ(text_of(instructed, instructed.read("{" + messages + "}")), "u");
  const ChatEncoder chat = byte_chat(
      {.name = ChatTemplateKind::custom, .prompt_template = "{lang}|{prompt}", .response_template = "{response}{eos}"});
  const ChatPrompts prompts(chat, {}, "");
  EXPECT_EQ(text_of(prompts, prompts.read(R"({"lang": "de", )" + messages + "}")), "de|u");
  expect_error(ExitCode::data, {"has no 'lang'"}, [&] { prompts.read("{" + messages + "}"); });
}

}  // namespace
}  // namespace hrm::data

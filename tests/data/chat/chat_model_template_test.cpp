// Templates of the model's own: prompts, responses, what ends them, and what is refused.
#include "data/chat/chat_support.h"

namespace hrm::data {
namespace {

using test::TempDir;
using Ids = std::vector<int32_t>;
using Messages = std::vector<ChatMessage>;
namespace fs = std::filesystem;

// As Qwen3-Instruct-2507: the tokenizer knows <think>, the template never writes one.
constexpr const char* kPlainChatml =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fs::path model_folder(const fs::path& folder, const std::string& text,
                      nlohmann::json config = nlohmann::json::object()) {
  config["eos_token"] = config.value("eos_token", "<|im_end|>");
  if (!text.empty()) config["chat_template"] = text;
  return chat_folder(folder, config.dump());
}
ChatEncoder model_chat(const TempDir& dir, const std::string& text, const ChatTemplateOptions& options = {}) {
  return open_chat_encoder(model_folder(dir / "m", text), options);
}

TEST(ModelTemplate, NoThoughtIsPutWhereTheTemplateHasNone) {
  const TempDir dir;
  const ChatEncoder chat = model_chat(dir, kPlainChatml);
  EXPECT_EQ(chat.name(), ChatTemplateKind::model);
  const Messages asked{{"user", "hi"}};
  EXPECT_EQ(chat.prompt_text(asked), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(chat.response_text("hello", asked), "hello<|im_end|>\n");
  // Thoughts of the data are the only ones.
  EXPECT_EQ(chat.response_text("<think>\nadd\n</think>\n\n4", asked), "<think>\nadd\n</think>\n\n4<|im_end|>\n");
  EXPECT_EQ(chat.stop_ids(), (std::vector<int64_t>{kImEnd}));
  const Ids prompt = chat.prompt_ids(asked), response = chat.response_ids("hello", asked);
  EXPECT_EQ(prompt[0], kImStart);
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), kThink), 0);
  EXPECT_EQ(response[response.size() - 2], kImEnd);
}

TEST(ModelTemplate, ItsOwnSystemMessageAndBosAreThere) {
  const TempDir dir;
  const std::string text =
      "{{ bos_token }}{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}";
  model_folder(dir / "m", text + kPlainChatml, {{"bos_token", "<|endoftext|>"}});
  const ChatEncoder chat = open_chat_encoder(dir / "m", {});
  EXPECT_EQ(chat.prompt_text({{"user", "hi"}}),
            "<|endoftext|><|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(chat.prompt_ids({{"user", "hi"}})[0], kEndOfText);
  EXPECT_EQ(chat.prompt_text({{"system", "s"}, {"user", "hi"}}).find("kind"), std::string::npos);
}

TEST(ModelTemplate, ThinkingIsPassedOnlyWhereItIsKnown) {
  const TempDir dir;
  const std::string text = std::string(kPlainChatml) +
                           "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
                           "<think>\n\n</think>\n\n{% endif %}";
  const Messages asked{{"user", "a"}};
  EXPECT_TRUE(model_chat(dir, text).prompt_text(asked).ends_with("assistant\n"));
  EXPECT_TRUE(model_chat(dir, text, {.thinking = ChatThinking::on}).prompt_text(asked).ends_with("assistant\n"));
  const ChatEncoder off = model_chat(dir, text, {.thinking = ChatThinking::off});
  EXPECT_TRUE(off.prompt_text(asked).ends_with("assistant\n<think>\n\n</think>\n\n"));
  // The whole conversation has no empty thought, so that nothing can be learned behind that prompt.
  expect_error(ExitCode::data, {"'b<|im_end|>\\n' stands where its prompt has '<think>", "chat.template"},
               [&] { off.response_text("b", asked); });
  expect_error(ExitCode::usage, {"chat.thinking is off", "knows no enable_thinking"},
               [&] { model_chat(dir, kPlainChatml, {.thinking = ChatThinking::off}); });
}

TEST(ModelTemplate, ADateIsTakenFromTheSettings) {
  const TempDir dir;
  const std::string text = std::string("{{ strftime_now('%d %b %Y') }} ") + kPlainChatml;
  EXPECT_TRUE(model_chat(dir, text, {.date = "2024-02-29"}).prompt_text({{"user", "a"}}).starts_with("29 Feb 2024 "));
  EXPECT_FALSE(model_chat(dir, text).prompt_text({{"user", "a"}}).starts_with("29 Feb 2024 "));
  for (const char* bad : {"2023-02-29", "today", "2024-2-29", "0000-01-01"}) {
    expect_error(ExitCode::usage, {"chat.date is '", "of the form 2026-11-25"},
                 [&] { model_chat(dir, text, {.date = bad}); });
  }
  expect_error(ExitCode::usage, {"chat.date", "asks for no date"},
               [&] { model_chat(dir, kPlainChatml, {.date = "2024-02-29"}); });
}

TEST(ModelTemplate, OfSeveralTheNamedOne) {
  const TempDir dir;
  const auto text = [](const std::string& word) { return word + kPlainChatml; };
  const nlohmann::json both = {{{"name", "default"}, {"template", text("d")}},
                               {{"name", "tool_use"}, {"template", text("t")}}};
  model_folder(dir / "a", "", {{"chat_template", both}});
  const auto begin = [&](const char* folder, const std::string& entry) {
    return open_chat_encoder(dir / folder, {.entry = entry}).prompt_text({{"user", "u"}})[0];
  };
  EXPECT_EQ(begin("a", ""), 'd');
  EXPECT_EQ(begin("a", "tool_use"), 't');
  expect_error(ExitCode::usage, {"no chat template 'rag', but default, tool_use", "chat.template_name"},
               [&] { begin("a", "rag"); });
  model_folder(dir / "b", "", {{"chat_template", {{{"name", "only"}, {"template", text("o")}}}}});
  expect_error(ExitCode::usage, {"no chat template 'default', but only"}, [&] { begin("b", ""); });
  EXPECT_EQ(begin("b", "only"), 'o');
  // Files come before the member of tokenizer_config.json.
  write_text(dir / "a" / "chat_template.jinja", "version https://git-lfs.github.com/spec/v1\n");
  expect_error(ExitCode::data, {"chat_template.jinja: this is a Git LFS pointer"}, [&] { begin("a", ""); });
  for (const char* mark : {"", "\xEF\xBB\xBF"}) {
    write_text(dir / "a" / "chat_template.jinja", mark + text("f"));
    EXPECT_EQ(begin("a", ""), 'f') << "a byte-order mark is not a text";
  }
  expect_error(ExitCode::usage, {"no chat template 'tool_use', but default"}, [&] { begin("a", "tool_use"); });
  fs::create_directories(dir / "a" / kNamedTemplates);
  write_text(dir / "a" / kNamedTemplates / "tool_use.jinja", text("n"));
  EXPECT_EQ(begin("a", "tool_use"), 'n');
  EXPECT_EQ(place_beside_tokenizer(dir / "a" / kNamedTemplates / "tool_use.jinja"),
            fs::path("additional_chat_templates/tool_use.jinja"));
}

TEST(ModelTemplate, WhatCannotBeRunIsRefusedByLineAndConstruct) {
  const TempDir dir;
  expect_error(ExitCode::data,
               {"tokenizer_config.json: chat_template, line 2: the statement {% include %} is not supported",
                "name the template with chat.template: chatml"},
               [&] { model_chat(dir, "\n{% include 'x' %}"); });
  const ChatEncoder chat = model_chat(
      dir,
      std::string("{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}") + kPlainChatml);
  expect_error(ExitCode::data, {"chat_template, line 1: the template refuses the conversation: no system"}, [&] {
    chat.prompt_text({{"system", "s"}, {"user", "u"}});
  });
  // In a data set it is a malformed line.
  ChatDataOptions options;
  options.max_malformed = 1;
  write_text(dir / "r.jsonl",
             "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"u\"}, "
             "{\"role\": \"assistant\", \"content\": \"a\"}]}\n" +
                 chat_line("p", "q"));
  const ChatDataset data(dir / "r.jsonl", chat, options);
  EXPECT_EQ(data.size(), 1);
  EXPECT_EQ(data.counts().malformed, 1);
  expect_error(ExitCode::usage, {"has no chat_template", "chatml, llama3, plain or custom"},
               [&] { open_chat_encoder(chat_folder(dir / "n", "{}"), {.name = ChatTemplateKind::model}); });
}

constexpr const char* kMarkedChatml =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST(ModelTemplate, EveryTurnIsLearnedAsMarked) {
  const TempDir dir;
  const ChatEncoder chat = model_chat(dir, kMarkedChatml);
  ASSERT_TRUE(chat.marks_turns());
  const Messages messages{{"user", "a"}, {"assistant", "one \xF0\x9F\x8C\x8D"}, {"user", "b"}};
  const ChatEncoder::Turns turns = chat.turns(messages, "two");
  std::string said;
  Ids run;
  for (size_t i = 0; i <= turns.ids.size(); ++i) {
    if (i < turns.ids.size() && turns.learned[i] == 1) {
      run.push_back(turns.ids[i]);
    } else if (!run.empty()) {
      said += chat.encoder().decode(run) + "|";
      run.clear();
    }
  }
  EXPECT_EQ(said, "one \xF0\x9F\x8C\x8D<|im_end|>|two<|im_end|>|");
  EXPECT_EQ(Ids(turns.ids.begin(), turns.ids.begin() + turns.prompt), chat.prompt_ids(messages));
  // As rows: labels are the marked ids alone.
  write_text(dir / "r.jsonl",
             R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x"},
                 {"role": "user", "content": "b"}, {"role": "assistant", "content": "two"}]})"
             "\n");
  std::string line = read_text(dir / "r.jsonl", ExitCode::data);
  line.erase(std::remove(line.begin(), line.end() - 1, '\n'), line.end() - 1);
  write_text(dir / "r.jsonl", line);
  ChatDataOptions options;
  options.every_turn = true;
  const ChatDataset data(dir / "r.jsonl", chat, options);
  ASSERT_EQ(data.size(), 1);
  EXPECT_EQ(data[0].learned.size(), static_cast<size_t>(data[0].ids()));
  const auto ones = [](const std::vector<uint8_t>& marks) { return std::count(marks.begin(), marks.end(), 1); };
  EXPECT_EQ(ones(data[0].learned), 2 + static_cast<int64_t>(chat.encoder().encode("two").size() + 1));
  // Cut, the marks are as many as the ids.
  options.max_tokens = data[0].ids() - 2;
  const ChatDataset cut(dir / "r.jsonl", chat, options);
  EXPECT_TRUE(cut[0].is_cut);
  EXPECT_EQ(cut[0].learned.size(), static_cast<size_t>(cut[0].ids()));
  const ChatEncoder unmarked = model_chat(dir, kPlainChatml);
  expect_error(ExitCode::usage, {"chat.learn is turns", "{% generation %}", "chat_template.jinja"},
               [&] { ChatDataset(dir / "r.jsonl", unmarked, options); });
}

// The post-processor's BOS is in front of plain prompts, as a base model saw it.
TEST(ModelTemplate, PlainPromptsHaveTheTokenizersBos) {
  const TempDir dir;
  chat_folder(dir / "m", R"({"eos_token": "<|endoftext|>"})");
  nlohmann::json tokenizer = nlohmann::json::parse(read_text(dir / "m" / "tokenizer.json", ExitCode::data));
  const Ids plain = open_chat_encoder(dir / "m", {.name = ChatTemplateKind::plain}).prompt_ids({{"user", "Once"}});
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", nlohmann::json::array()},
      {"special_tokens",
       {{"<|endoftext|>", {{"id", "<|endoftext|>"}, {"ids", {kEndOfText}}, {"tokens", {"<|endoftext|>"}}}}}}};
  write_text(dir / "m" / "tokenizer.json", tokenizer.dump());
  Ids expected = plain;
  expected.insert(expected.begin(), kEndOfText);
  EXPECT_EQ(open_chat_encoder(dir / "m", {.name = ChatTemplateKind::plain}).prompt_ids({{"user", "Once"}}), expected);
  EXPECT_EQ(open_chat_encoder(dir / "m", {.name = ChatTemplateKind::plain, .bos = config::ChatBos::off})
                .prompt_ids({{"user", "Once"}}),
            plain);
  EXPECT_EQ(open_chat_encoder(dir / "m", {.name = ChatTemplateKind::plain}).response_ids("x").back(), kEndOfText);
}

}  // namespace
}  // namespace hrm::data

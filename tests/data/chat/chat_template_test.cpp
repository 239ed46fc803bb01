#include "hrm/data/chat_template.h"

#include "data/chat/chat_support.h"
#include "hrm/formats/tokenizer_folder.h"

namespace hrm::data {
namespace {

using test::TempDir;
using Ids = std::vector<int32_t>;
using Messages = std::vector<ChatMessage>;

const std::string kTweet = "Generate an engaging Twitter reply to this tweet:\n\nhi \u00e9\n\nReply:";

TEST(ChatTemplate, RendersQwenWithoutThinking) {
  const TempDir dir;
  const ChatEncoder chat = open_chat_encoder(chat_folder(dir / "m", kQwenConfig), {.name = ChatTemplateKind::chatml});
  EXPECT_EQ(chat.name(), ChatTemplateKind::chatml);
  EXPECT_EQ(chat.prompt_text({{"user", kTweet}}),
            "<|im_start|>user\n" + kTweet + "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  EXPECT_EQ(chat.response_text("yes"), "yes<|im_end|>\n");
  EXPECT_EQ(chat.stop_ids(), (std::vector<int64_t>{kImEnd}));
  EXPECT_EQ(chat.stop_text(), "");
  const Ids prompt = chat.prompt_ids({{"user", "a"}}), response = chat.response_ids("a");
  const Tokenizer& tokenizer = Tokenizer::load(fixture("tokenizer") / "tokenizer.json");
  const int32_t line = tokenizer.encode("\n")[0];
  Ids want{kImStart};
  const auto add = [&](const std::string& text) {
    for (const int32_t id : tokenizer.encode(text)) want.push_back(id);
  };
  add("user\na");
  want.insert(want.end(), {kImEnd, line, kImStart});
  add("assistant\n");
  want.push_back(kThink);
  add("\n\n");
  want.push_back(kThinkEnd);
  add("\n\n");
  EXPECT_EQ(prompt, want);
  EXPECT_EQ(response, (Ids{tokenizer.encode("a")[0], kImEnd, line}));
  EXPECT_EQ(chat.encoder().decode(prompt), chat.prompt_text({{"user", "a"}}));
}

TEST(ChatTemplate, ThinkingLeavesTheBlockOut) {
  const TempDir dir;
  const auto folder = chat_folder(dir / "m", kQwenConfig);
  const auto tail = [&](ChatThinking thinking) {
    const std::string text = open_chat_encoder(folder, {.name = ChatTemplateKind::chatml, .thinking = thinking})
                                 .prompt_text({{"user", "a"}});
    return text.substr(text.rfind("assistant"));
  };
  EXPECT_EQ(tail(ChatThinking::on), "assistant\n");
  EXPECT_EQ(tail(ChatThinking::off), "assistant\n<think>\n\n</think>\n\n");
  EXPECT_EQ(tail(ChatThinking::automatic), tail(ChatThinking::off));
  // A tokenizer without <think>: auto leaves it out.
  TextEncoder encoder = open_tokenizer_folder(folder).encoder;
  const auto all = encoder.id_of;
  encoder.id_of = [all](std::string_view token) { return token == "<think>" ? std::nullopt : all(token); };
  EXPECT_EQ(ChatEncoder(encoder, {.name = ChatTemplateKind::chatml}).prompt_text({{"user", "a"}}),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
  expect_error(ExitCode::usage,
               {"chatml does not fit the tokenizer", "tokenizer.json", "no token <think>", "set thinking"},
               [&] { ChatEncoder(encoder, {.name = ChatTemplateKind::chatml, .thinking = ChatThinking::off}); });
}

TEST(ChatTemplate, RendersSeveralMessages) {
  const TempDir dir;
  const ChatEncoder chat = open_chat_encoder(chat_folder(dir / "m", kQwenConfig),
                                             {.name = ChatTemplateKind::chatml, .thinking = ChatThinking::on});
  const Messages messages = {{"system", "s"}, {"user", " u "}, {"assistant", "a"}, {"user", ""}};
  EXPECT_EQ(chat.prompt_text(messages),
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n u <|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
            "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n");
}

// The tokens of Llama 3 as ids of their own.
TextEncoder llama_encoder() {
  TokenizerJson json = byte_tokenizer();
  int32_t next = 256;
  for (const char* token : {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}) {
    json.added_tokens.push_back({.content = token, .id = next++, .special = true});
  }
  const Tokenizer tokenizer(json);
  TextEncoder encoder = byte_encoder();
  encoder.encode = [tokenizer](std::string_view text) { return tokenizer.encode(text); };
  encoder.id_of = [tokenizer](std::string_view token) { return tokenizer.id_of(token); };
  encoder.meta.vocab_size = tokenizer.vocab_size();
  encoder.meta.eos_id = 259;
  return encoder;
}

TEST(ChatTemplate, RendersLlama3) {
  const ChatEncoder chat(llama_encoder(), {.name = ChatTemplateKind::llama3});
  EXPECT_EQ(chat.prompt_text({{"system", "s\n"}, {"user", "\n u v \t"}}),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nu v<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(chat.response_ids(" a "), (Ids{'a', 259}));
  EXPECT_EQ(chat.prompt_ids({{"user", "u"}}), (Ids{256, 257, 'u', 's', 'e', 'r', 258, '\n', '\n', 'u', 259,  257,
                                                   'a', 's', 's', 'i', 's', 't', 'a', 'n',  't',  258, '\n', '\n'}));
  EXPECT_EQ(chat.stop_ids(), (std::vector<int64_t>{259}));
}

TEST(ChatTemplate, PlainIsTheTextAndEos) {
  const ChatEncoder chat = byte_chat();
  EXPECT_EQ(chat.prompt_ids({{"user", "ab"}}), (Ids{'a', 'b'}));
  EXPECT_EQ(chat.response_ids("c "), (Ids{'c', ' ', 257}));
  EXPECT_EQ(chat.stop_ids(), (std::vector<int64_t>{257}));
  for (const Messages& other : {Messages{}, {{"system", "s"}}, {{"system", "s"}, {"user", "u"}}}) {
    expect_error(ExitCode::data, {"plain takes one message of the user", cat("not ", other.size())},
                 [&] { chat.prompt_text(other); });
  }
}

TEST(ChatTemplate, CustomHasPlacesForMembers) {
  const ChatEncoder chat = byte_chat({.name = ChatTemplateKind::custom,
                                      .prompt_template = "{bos}{lang}:{prompt}{{}}{lang}>",
                                      .response_template = " {response}.{eos}"});
  EXPECT_EQ(chat.members(), (std::vector<std::string>{"lang"}));
  EXPECT_EQ(chat.prompt_text({{"user", "q{lang}"}}, {"de"}), "de:q{lang}{}de>");
  EXPECT_EQ(chat.prompt_ids({{"user", "q"}}, {"d"}), (Ids{256, 'd', ':', 'q', '{', '}', 'd', '>'}));
  EXPECT_EQ(chat.response_ids("r"), (Ids{' ', 'r', '.', 257}));
  EXPECT_EQ(chat.stop_ids(), (std::vector<int64_t>{257}));
  const ChatEncoder text =
      byte_chat({.name = ChatTemplateKind::custom, .prompt_template = "{a}", .response_template = "{response}\n##}}"});
  EXPECT_EQ(text.stop_text(), "\n##}");
  EXPECT_TRUE(text.stop_ids().empty());
  EXPECT_EQ(text.response_text("r"), "r\n##}");
}

TEST(ChatTemplate, RefusesTemplatesThatDoNotFit) {
  const auto refused = [](const ChatTemplateOptions& options, const std::vector<std::string>& parts) {
    expect_error(ExitCode::usage, parts, [&] { byte_chat(options); });
  };
  refused({}, {"model, chatml, llama3, plain or custom, not 'auto'"});
  refused({.name = ChatTemplateKind::plain, .prompt_template = "{prompt}"}, {"plain has its own texts; choose custom"});
  refused({.name = ChatTemplateKind::chatml},
          {"the chat template chatml does not fit the tokenizer 'bytes'", "no token <|im_start|>"});
  refused({.name = ChatTemplateKind::llama3}, {"llama3 does not fit", "<|begin_of_text|>", "choose another template"});
  refused({.name = ChatTemplateKind::custom, .prompt_template = "x", .response_template = "{response}{eos}"},
          {"no place for a text"});
  refused(
      {.name = ChatTemplateKind::custom, .prompt_template = "{prompt}{bos}", .response_template = "{response}{eos}"},
      {"{bos} can only stand at the beginning"});
  refused({.name = ChatTemplateKind::custom, .prompt_template = "{prompt", .response_template = "{response}{eos}"},
          {"prompt_template: a single '{'"});
  refused({.name = ChatTemplateKind::custom, .prompt_template = "{prompt}", .response_template = "{response}"},
          {"nothing ends a response"});
  for (const char* bad : {"", "{eos}", "{x}{response}{eos}", "{response}{response}{eos}", "{response}{eos}."}) {
    refused({.name = ChatTemplateKind::custom, .prompt_template = "{prompt}", .response_template = bad},
            {"response_template: must have the place {response} once"});
  }
  TextEncoder without = byte_encoder();
  without.meta.eos_id = without.meta.bos_id = -1;
  expect_error(ExitCode::usage, {"plain ends a response with EOS", "names no such token"},
               [&] { ChatEncoder(without, {.name = ChatTemplateKind::plain}); });
  expect_error(ExitCode::usage, {"begins a prompt with BOS"}, [&] {
    ChatEncoder(
        without,
        {.name = ChatTemplateKind::custom, .prompt_template = "{bos}{prompt}", .response_template = "{response}."});
  });
}

TEST(ChatTemplate, OpensFoldersOfTransformers) {
  const TempDir dir;
  const LanguageMeta meta = open_tokenizer_folder(chat_folder(dir / "a", kQwenConfig)).encoder.meta;
  EXPECT_EQ(meta.vocab_size, 1505);
  EXPECT_EQ(meta.eos_id, kImEnd);
  EXPECT_EQ(meta.pad_id, kEndOfText);
  EXPECT_EQ(meta.bos_id, -1);
  EXPECT_EQ(meta.tokenizer_digest.size(), 32u);
  // The end of a chat, and of a text where that is another one.
  chat_folder(dir / "b", R"({"eos_token": "<|endoftext|>"})");
  EXPECT_EQ(open_chat_encoder(dir / "b", {.name = ChatTemplateKind::chatml}).stop_ids(),
            (std::vector<int64_t>{kImEnd, kEndOfText}));
  expect_error(ExitCode::usage, {"tokenizer_config.json: has no chat_template"},
               [&] { open_chat_encoder(dir / "b", {}); });
  write_text(dir / "b" / "chat_template.jinja", "<|im_start|>");
  EXPECT_EQ(open_chat_encoder(dir / "b", {}).name(), ChatTemplateKind::model);
  chat_folder(dir / "c", "");
  EXPECT_EQ(open_tokenizer_folder(dir / "c").encoder.meta.eos_id, -1);
  expect_error(ExitCode::usage, {"has no chat_template"}, [&] { open_chat_encoder(dir / "c", {}); });
  chat_folder(dir / "d", R"({"eos_token": "</s>"})");
  expect_error(ExitCode::data, {"its eos_token '</s>' is not a token of the tokenizer.json"},
               [&] { open_tokenizer_folder(dir / "d"); });
  chat_folder(dir / "e", R"({"chat_template": "<|start_header_id|>"})");
  expect_error(ExitCode::usage, {"llama3 does not fit the tokenizer", "e/tokenizer.json", "<|begin_of_text|>"},
               [&] { open_chat_encoder(dir / "e", {.name = ChatTemplateKind::llama3}); });
  expect_error(ExitCode::data, {"chat_template writes no special token", "name the eos_token"},
               [&] { open_chat_encoder(dir / "e", {}); });
  expect_error(ExitCode::data, {"tokenizer.json", "does not exist"}, [&] { open_tokenizer_folder(dir / "f"); });
  // The tokenizer's two halves, of which a run keeps the whole: the same file has the same digest.
  const nlohmann::ordered_json model =
      nlohmann::ordered_json::parse(read_text(fixture("tokenizer") / "tokenizer.json", ExitCode::data))["model"];
  std::string merges;
  for (const auto& merge : model["merges"]) {
    merges += cat(merge[0].get<std::string>(), " ", merge[1].get<std::string>(), "\n");
  }
  std::filesystem::create_directories(dir / "g");
  write_text(dir / "g" / "vocab.json", model["vocab"].dump());
  write_text(dir / "g" / "merges.txt", merges);
  const TokenizerFolder halves = open_tokenizer_folder(dir / "g");
  EXPECT_EQ(halves.encoder.file, dir / "g" / "vocab.json");
  EXPECT_EQ(halves.encoder.encode("the cat"), Tokenizer::load(dir / "g").encode("the cat"));
  EXPECT_EQ(halves.encoder.meta.vocab_size, 1501);
  std::filesystem::create_directories(dir / "h");
  write_text(dir / "h" / "tokenizer.json", read_folder_tokenizer(dir / "g").text);
  EXPECT_EQ(open_tokenizer_folder(dir / "h").encoder.meta.tokenizer_digest, halves.encoder.meta.tokenizer_digest);
}

}  // namespace
}  // namespace hrm::data

// Tools and thoughts of records reach a model's own template, and no other.
#include "data/chat/chat_support.h"

namespace hrm::data {
namespace {

using test::TempDir;
namespace fs = std::filesystem;

constexpr const char* kToolChatml =
    "{% if tools %}tools {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}call {{ call.name }} {{ call.arguments | tojson }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

ChatEncoder tool_chat(const TempDir& dir, const ChatTemplateOptions& options = {}) {
  const nlohmann::json config = {{"eos_token", "<|im_end|>"}, {"chat_template", kToolChatml}};
  return open_chat_encoder(chat_folder(dir / "m", config.dump()), options);
}

const std::string kUser = R"({"role": "user", "content": "u"})";
const std::string kCall = R"({"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"z": 1, "a": "b"}}]})";
const std::string kThought = R"({"role": "assistant", "content": "x", "thinking": "hm"})";
std::string record(const std::string& messages, const std::string& tools) {
  return R"({"messages": [)" + messages + R"(], "tools": )" + tools + "}\n";
}

TEST(ChatTools, ReachTheTemplate) {
  const TempDir dir;
  const ChatEncoder chat = tool_chat(dir);
  write_text(dir / "r.jsonl",
             record(kUser + "," + kCall, R"([{"z": 1, "a": 2}])") + record(kUser + "," + kCall, R"("[{\"y\": 3}]")") +
                 record(kUser + "," + kThought, "null") +
                 record(kCall + R"(, {"role": "tool", "name": "f", "content": "t"}, )" + kThought, "[]") +
                 record(kUser + R"(, {"role": "assistant", "content": "", "tool_calls": []})", "null"));
  ChatDataOptions options;
  options.deduplicate = true;
  const ChatDataset data(dir / "r.jsonl", chat, options);
  EXPECT_EQ(data.counts().empty_response, 1);
  EXPECT_EQ(data.counts().duplicates, 0);
  ASSERT_EQ(data.size(), 4);
  EXPECT_EQ(data.counts().prompts, 4) << "other tools, other prompts";
  const auto texts = [&](int64_t i) {
    return std::pair(chat.encoder().decode(data[i].prompt_ids), chat.encoder().decode(data[i].response_ids));
  };
  const std::string asked = "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n";
  const std::string call = "call f {\"z\": 1, \"a\": \"b\"}";
  EXPECT_EQ(texts(0), std::pair("tools [{\"z\": 1, \"a\": 2}]\n" + asked, call + "<|im_end|>\n"));
  EXPECT_EQ(texts(1), std::pair("tools [{\"y\": 3}]\n" + asked, call + "<|im_end|>\n"));
  EXPECT_EQ(data[0].response, call) << "what an answer would have to be to be right";
  EXPECT_EQ(texts(2), std::pair(asked, std::string("<think>hm</think>x<|im_end|>\n")));
  EXPECT_EQ(texts(3).first,
            "<|im_start|>assistant\n" + call + "<|im_end|>\n<|im_start|>tool\nt<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTools, OtherTemplatesHaveNoPlaceForThem) {
  const TempDir dir;
  const std::string tools = R"([{"name": "f"}])";
  const auto read = [&](ChatTemplateKind name, const std::string& line, const std::string& field = "tools") {
    write_text(dir / "r.jsonl", line);
    ChatDataOptions options;
    options.fields.tools = field;
    return ChatDataset(dir / "r.jsonl", tool_chat(dir, {.name = name}), options).size();
  };
  const std::string answer = R"({"role": "assistant", "content": "x"})";
  for (const auto name : {ChatTemplateKind::chatml, ChatTemplateKind::plain}) {
    const auto refused = [&](const std::string& line, const std::string& what) {
      expect_error(ExitCode::data,
                   {what + cat(", for which the chat template ", name, " has no place"), "chat.template to model"},
                   [&] { read(name, line); });
    };
    refused(record(kUser + "," + answer, tools), "has tools");
    refused(record(kUser + "," + kThought, "null"), "the response has 'thinking'");
    refused(record(R"({"role": "user", "content": "u", "name": "n"},)" + answer, "null"), "message 1 has 'name'");
    refused(record(R"({"role": "user", "content": [{"type": "text", "text": "u"}]},)" + answer, "null"),
            "message 1 has a list of parts as its content");
    EXPECT_EQ(read(name, record(kUser + "," + answer, tools), ""), 1);
    EXPECT_EQ(read(name, record(kUser + "," + answer, "[]")), 1);
  }
  expect_error(ExitCode::data, {"chatml has no place for a message of role developer"}, [&] {
    read(ChatTemplateKind::chatml, record(R"({"role": "developer", "content": "d"},)" + answer, "null"));
  });
}

// A member that an instruction names is a text, whatever it is called.
TEST(ChatTools, AnInstructionMayNameThem) {
  const TempDir dir;
  write_text(dir / "r.jsonl", R"({"prompt": "p", "response": "r", "tools": "hammer"})"
                              "\n");
  ChatDataOptions options;
  options.instruction = "{prompt} with {tools}";
  const ChatDataset data(dir / "r.jsonl", tool_chat(dir, {.name = ChatTemplateKind::plain}), options);
  EXPECT_EQ(data[0].prompt, "p with hammer");
}

}  // namespace
}  // namespace hrm::data

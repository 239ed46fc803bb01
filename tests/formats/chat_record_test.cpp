#include "hrm/formats/chat_record.h"

#include "formats/format_testing.h"

namespace hrm {
namespace {

using Texts = std::vector<std::string>;

ChatFields tweet_fields() {
  ChatFields fields;
  fields.prompt = "tweet";
  fields.response = "reply";
  fields.id = "tweet_id";
  fields.value = "reply_likes";
  return fields;
}

void expect_record_refused(const std::string& line, const std::vector<std::string>& parts,
                           const ChatFields& fields = {}) {
  expect_error([&] { parse_chat_record(line, fields, ExitCode::data); }, ExitCode::data, parts);
}

TEST(ChatRecord, ReadsPromptAndResponse) {
  const ChatRecord one =
      parse_chat_record(R"({"prompt": "a\nb", "response": "c \u00e9", "more": [1, {"x": null}]})", {});
  EXPECT_EQ(one.prompt, "a\nb");
  EXPECT_EQ(one.response, "c \u00e9");
  EXPECT_TRUE(one.messages.empty() && one.id.empty() && one.texts.empty());
  EXPECT_FALSE(one.answers || one.value);
  EXPECT_EQ(parse_chat_record(R"({"prompt": "a"})", {}).response, "");
  EXPECT_EQ(parse_chat_record(R"({"prompt": "", "response": null})", {}).response, "");
}

TEST(ChatRecord, ReadsMessages) {
  const ChatRecord one = parse_chat_record(
      R"({"prompt": 5, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u", "name": null},
          {"role": "assistant", "content": "a"}]})",
      {});
  EXPECT_EQ(one.messages, (std::vector<ChatMessage>{{"system", "s"}, {"user", "u"}}));
  EXPECT_EQ(one.response, "a");
  EXPECT_EQ(one.prompt, "");
  // A chat that ends with the user waits for its response.
  const ChatRecord open = parse_chat_record(
      R"({"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "u"}]})", {});
  EXPECT_EQ(open.messages.size(), 2u);
  EXPECT_EQ(open.response, "");
  EXPECT_TRUE(parse_chat_record(R"({"messages": [{"role": "assistant", "content": "a"}]})", {}).messages.empty());
}

TEST(ChatRecord, ReadsNamedMembers) {
  ChatFields fields = tweet_fields();
  fields.texts = {"lang", "n", "b"};
  const std::string line =
      R"({"tweet_id": 18446744073709551615, "tweet": "t", "reply": "r", "reply_likes": 2.5, "lang": "de", "n": 3, "b": true})";
  const ChatRecord one = parse_chat_record(line, fields);
  EXPECT_EQ(one.id, "18446744073709551615");
  EXPECT_EQ(one.prompt, "t");
  EXPECT_EQ(one.response, "r");
  EXPECT_EQ(one.value, 2.5);
  EXPECT_EQ(one.texts, (Texts{"de", "3", "true"}));
  const ChatRecord other = parse_chat_record(R"({"tweet_id": "x7", "tweet": "t", "reply": "r"})", tweet_fields());
  EXPECT_EQ(other.id, "x7");
  EXPECT_FALSE(other.value);
}

TEST(ChatRecord, ReadsAnswers) {
  EXPECT_EQ(*parse_chat_record(R"({"prompt": "p", "answers": ["a", "b c"]})", {}).answers, (Texts{"a", "b c"}));
  EXPECT_TRUE(parse_chat_record(R"({"prompt": "p", "answers": []})", {}).answers->empty());
  EXPECT_FALSE(parse_chat_record(R"({"prompt": "p", "answers": null})", {}).answers);
}

TEST(ChatRecord, OneAnswerIsAText) {
  EXPECT_EQ(*parse_chat_record(R"({"prompt": "p", "answers": "7"})", {}).answers, Texts{"7"});
  ChatFields fields;
  fields.answers = "answer";
  EXPECT_EQ(*parse_chat_record(R"({"prompt": "p", "answer": "7", "answers": ["8"]})", fields).answers, Texts{"7"});
}

TEST(ChatRecord, ReadsShareGpt) {
  const ChatRecord one = parse_chat_record(
      R"({"id": 1, "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "u"},
          {"from": "gpt", "value": "a"}, {"from": "observation", "value": "t"}, {"from": "chatgpt", "value": "b"}]})",
      {});
  EXPECT_EQ(one.messages,
            (std::vector<ChatMessage>{{"system", "s"}, {"user", "u"}, {"assistant", "a"}, {"tool", "t"}}));
  EXPECT_EQ(one.response, "b");
  EXPECT_EQ(one.no_response, "");
  const std::string talk = R"([{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}])";
  EXPECT_EQ(parse_chat_record(R"({"system": "s", "conversations": )" + talk + "}", {}).messages,
            (std::vector<ChatMessage>{{"system", "s"}, {"user", "u"}}));
  EXPECT_EQ(parse_chat_record(R"({"system": " ", "messages": )" + talk + "}", {}).messages,
            (std::vector<ChatMessage>{{"user", "u"}}));
  expect_record_refused(
      R"({"conversations": [{"from": "human", "value": "u"}, {"from": "function_call", "value": "f"}]})",
      {"message 2 has the role 'function_call'", "human, user, gpt"});
  expect_record_refused(R"({"conversations": [{"from": "human", "value": 1}]})", {"message 1 is not of the form"});
  expect_record_refused(R"({"conversations": [{"from": "human", "value": "u", "weight": 0}]})",
                        {"message 1 has 'weight'; only from and value are read"});
}

TEST(ChatRecord, FindsTheConversation) {
  const std::string talk = R"([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}])";
  for (const char* name : {"conversations", "chat", "dialog"}) {
    const ChatRecord one = parse_chat_record(cat("{\"source\": [\"x\"], \"", name, "\": ", talk, "}"), {});
    EXPECT_EQ(one.messages, (std::vector<ChatMessage>{{"user", "u"}}));
    EXPECT_EQ(one.response, "a");
  }
  ChatFields fields;
  expect_record_refused(R"({"chosen": )" + talk + R"(, "rejected": )" + talk + "}",
                        {"has conversations in 'chosen', 'rejected'; name one of them with chat.messages_field"});
  fields.messages = "chosen";
  EXPECT_EQ(parse_chat_record(R"({"chosen": )" + talk + R"(, "messages": 5, "prompt": 6})", fields).response, "a");
  // Who names one that is not there does not get another one.
  fields.messages = "dialog";
  expect_record_refused(R"({"messages": )" + talk + "}",
                        {"has neither 'dialog' nor 'prompt'; its members are 'messages'"}, fields);
  // What is around the records, and lists of nothing.
  expect_record_refused(R"({"data": [{"prompt": "p", "response": "r"}, {"prompt": "q", "response": "r"}]})",
                        {"its members are 'data'", "if 'data' holds the records", "jq .data FILE"});
  expect_record_refused(R"({"id": 1, "conversations": []})", {"'conversations' is an empty list"});
  // A prompt of the usual name comes first, and what it lacks is said.
  const ChatRecord prompt = parse_chat_record(R"({"prompt": "p", "chat": )" + talk + "}", {});
  EXPECT_EQ(prompt.prompt, "p");
  EXPECT_NE(prompt.no_response.find("chat.messages_field=chat"), std::string::npos) << prompt.no_response;
}

TEST(ChatRecord, ReadsAlpaca) {
  const ChatRecord one = parse_chat_record(R"({"instruction": "Add.", "input": "1, 2", "output": "3"})", {});
  EXPECT_EQ(one.prompt, "Add.\n1, 2");
  EXPECT_EQ(one.response, "3");
  EXPECT_TRUE(one.messages.empty());
  for (const char* input : {R"("input": "",)", R"("input": null,)", ""}) {
    EXPECT_EQ(parse_chat_record(cat(R"({"instruction": "Add.", )", input, R"("output": ""})"), {}).prompt, "Add.");
  }
  const ChatRecord more =
      parse_chat_record(R"({"instruction": "i", "output": "o", "system": "s", "history": [["u", "a"]]})", {});
  EXPECT_EQ(more.messages,
            (std::vector<ChatMessage>{{"system", "s"}, {"user", "u"}, {"assistant", "a"}, {"user", "i"}}));
  EXPECT_EQ(more.response, "o");
  expect_record_refused(R"({"instruction": "i", "output": "o", "history": [["u"]]})",
                        {"'history' is not a list of pairs"});
  // Its members by name are as any others.
  ChatFields fields;
  fields.prompt = "instruction";
  fields.response = "output";
  EXPECT_EQ(parse_chat_record(R"({"instruction": "Add.", "input": "1, 2", "output": "3"})", fields).prompt, "Add.");
}

TEST(ChatRecord, ReadsCompletions) {
  EXPECT_EQ(parse_chat_record(R"({"prompt": "p", "completion": "c"})", {}).response, "c");
  EXPECT_EQ(parse_chat_record(R"({"prompt": "p", "completion": "c", "response": "r"})", {}).response, "r");
  EXPECT_EQ(parse_chat_record(R"({"prompt": "p", "completion": "c", "response": null})", {}).no_response,
            "'response' is null");
  ChatFields other;
  other.response = "reply";
  EXPECT_NE(parse_chat_record(R"({"prompt": "p", "completion": "c"})", other).no_response.find("has no 'reply'"),
            std::string::npos);
  const ChatRecord one = parse_chat_record(
      R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
          "completion": [{"role": "assistant", "content": "a"}]})",
      {});
  EXPECT_EQ(one.messages, (std::vector<ChatMessage>{{"system", "s"}, {"user", "u"}}));
  EXPECT_EQ(one.response, "a");
  EXPECT_EQ(parse_chat_record(R"({"prompt": "u", "completion": [{"role": "assistant", "content": "a"}]})", {}).prompt,
            "u");
  const ChatRecord open = parse_chat_record(R"({"prompt": [{"role": "user", "content": "u"}], "answers": "7"})", {});
  EXPECT_EQ(open.messages, (std::vector<ChatMessage>{{"user", "u"}}));
  EXPECT_NE(open.no_response.find("has no 'response'"), std::string::npos);
  expect_record_refused(
      R"({"prompt": [{"role": "user", "content": "u"}], "completion": [{"role": "user", "content": "a"}]})",
      {"'completion' ends with a message of role user"});
  expect_record_refused(
      R"({"prompt": "p", "completion": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]})",
      {"'completion' has 2 messages, but 'prompt' is a text"});
}

TEST(ChatRecord, SaysWhatIsLacking) {
  expect_record_refused(R"({"question": "q", "answer": "a"})",
                        {"has neither 'messages' nor 'prompt'", "its members are 'answer', 'question'",
                         "chat.prompt_field and chat.response_field, or chat.messages_field"});
  EXPECT_EQ(parse_chat_record(R"({"prompt": "q", "text": "a"})", {}).no_response,
            "has no 'response'; its members are 'prompt', 'text': name the right one with chat.response_field");
  EXPECT_EQ(parse_chat_record(R"({"prompt": "q", "response": ""})", {}).no_response, "") << "it has one, an empty one";
  EXPECT_EQ(parse_chat_record(R"({"chat": [{"role": "user", "content": "u"}]})", {}).no_response,
            "the conversation in 'chat' ends with a message of the user, so it has no response to learn from");
}

// In the order in which they stand, as a template may write them.
TEST(ChatRecord, KeepsWhatAMessageHasBesideItsText) {
  const std::string call =
      R"({"role":"assistant","z":null,"content":null,"tool_calls":[{"name":"f","arguments":{"b":1.50,"a":[]}}]})";
  const ChatRecord one = parse_chat_record(
      R"({"messages": [{"role": "developer", "content": "d"}, {"role": "user", "content": "u", "name": null}, )" +
          call +
          R"(, {"role": "tool", "name": "f", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
             {"role": "assistant", "content": "x", "reasoning_content": "r"}]})",
      {});
  ASSERT_EQ(one.messages.size(), 4u);
  EXPECT_EQ(one.messages[0], (ChatMessage{"developer", "d"}));
  EXPECT_EQ(one.messages[1], (ChatMessage{"user", "u"}));
  EXPECT_EQ(one.messages[2].content, "");
  EXPECT_EQ(one.messages[2].json,
            R"({"role":"assistant","z":null,"content":null,"tool_calls":[{"name":"f","arguments":{"b":1.5,"a":[]}}]})");
  EXPECT_EQ(one.messages[3].content, "ab");
  EXPECT_TRUE(one.messages[3].json.starts_with(R"({"role":"tool","name":"f",)"));
  EXPECT_EQ(one.response, "x");
  EXPECT_EQ(one.response_json, R"({"role":"assistant","content":"x","reasoning_content":"r"})");
  EXPECT_TRUE(says_something(one));
  const auto says = [&](const std::string& last) {
    return says_something(parse_chat_record(R"({"prompt": "p", "completion": [)" + last + "]}", {}));
  };
  EXPECT_TRUE(says(call));
  EXPECT_TRUE(says(R"({"role": "assistant", "tool_calls": [{}]})"));
  EXPECT_TRUE(says(R"({"role": "assistant", "content": "", "thinking": "t"})"));
  EXPECT_FALSE(says(R"({"role": "assistant", "content": " ", "tool_calls": [], "thinking": "", "name": "n"})"));
  EXPECT_FALSE(says(R"({"role": "assistant", "content": [{"type": "text", "text": ""}], "weight": 1})"));
  const auto refused = [](const std::string& message, const std::vector<std::string>& parts) {
    expect_record_refused(R"({"messages": [{"role": "user", "content": "u"}, )" + message + "]}", parts);
  };
  refused(R"({"role": "user", "content": [{"type": "image"}]})",
          {"message 2 has a part of type 'image'; only parts of type text"});
  refused(R"({"role": "user", "content": ["a"]})", {"message 2 is not of the form"});
  refused(R"({"role": "user", "content": 5, "name": "n"})", {"message 2 is not of the form"});
  refused(R"({"role": "assistant", "content": "a", "weight": 0})", {"message 2 has 'weight' 0", "chat.learn"});
  refused(R"({"role": "assistant", "content": "a", "train": false})", {"message 2 has 'train' false"});
  std::string many = R"({"role": "user", "content": "u", "x": {"k": 0)";
  for (int i = 0; i < 1024; ++i) many += cat(", \"", i, "\": 0");
  refused(many + "}}", {"an object of 1025 members; at most 1024"});
}

TEST(ChatRecord, ReadsTools) {
  const auto tools = [](const std::string& value, const ChatFields& fields = {}) {
    return parse_chat_record(R"({"prompt": "p", "response": "r", "tools": )" + value + "}", fields).tools;
  };
  EXPECT_EQ(tools(R"([{"z": 1, "a": {"y": "\u00e9", "b": []}}, {}])"),
            "[{\"z\":1,\"a\":{\"y\":\"\u00e9\",\"b\":[]}},{}]");
  EXPECT_EQ(tools(R"("[{\"z\": 1, \"a\": 2}]")"), R"([{"z":1,"a":2}])") << "a text with them";
  EXPECT_EQ(tools("[]"), "[]");
  for (const char* none : {"null", R"("")", R"(" ")", R"("null")"}) EXPECT_EQ(tools(none), "") << none;
  ChatFields other;
  other.tools = "functions";
  EXPECT_EQ(tools("5", other), "");
  other.tools.clear();
  EXPECT_EQ(tools("5", other), "");
  for (const char* wrong : {"5", "{}", R"(["f"])", R"("hammer")"}) {
    expect_record_refused(cat(R"({"prompt": "p", "tools": )", wrong, "}"),
                          {"'tools'", "name another member with chat.tools_field, or none with chat.tools_field="});
  }
}

TEST(ChatRecord, RefusesOtherForms) {
  expect_record_refused("", {"is not valid JSON"});
  expect_record_refused("[]", {"the line is not an object"});
  expect_record_refused("question,answer",
                        {"the line is not an object: a record begins with {, and it with 'question,answer'"});
  expect_record_refused("{\"prompt\": \"\xFF\"}", {"not valid UTF-8"});
  expect_record_refused(R"({"prompt": "\ud800"})", {"is not valid JSON"});
  expect_record_refused(R"({"prompt": "a", "prompt": "b"})", {"the key 'prompt' occurs twice"});
  expect_record_refused(R"({"response": "a"})", {"has neither 'messages' nor 'prompt'"});
  expect_record_refused(R"({"prompt": 1})", {"'prompt' is neither a text nor a list of messages"});
  expect_record_refused(R"({"prompt": null})", {"has no 'prompt'"});
  expect_record_refused(R"({"prompt": "a", "response": ["b"]})",
                        {"'response' is neither a text nor a list of messages"});
  expect_record_refused(R"({"prompt": "a", "answers": {"b": 1}})", {"'answers' is neither a text nor a list"});
  expect_record_refused(R"({"prompt": "a", "answers": ["b", 1]})", {"'answers' is not a text"});
  expect_record_refused(R"({"messages": []})", {"'messages' is not a list of 1 to 4096 messages"});
  expect_record_refused(R"({"messages": {}})", {"'messages' is not a list"});
  expect_record_refused(R"({"messages": ["a"]})", {"message 1 is not of the form"});
  expect_record_refused(R"({"messages": [{"role": "user", "content": "a"}, {"role": "user"}]})",
                        {"message 2 is not of the form"});
  expect_record_refused(R"({"messages": [{"role": "user", "content": [1]}]})", {"message 1 is not of the form"});
  expect_record_refused(R"({"messages": [{"role": "root", "content": "a"}]})",
                        {"message 1 has the role 'root'", "system"});
  expect_record_refused(R"({"tweet": "a"})", {"has no 'tweet_id'"}, tweet_fields());
  expect_record_refused(R"({"tweet": "a", "tweet_id": 1.5})", {"'tweet_id' is neither a text nor a whole number"},
                        tweet_fields());
  expect_record_refused(R"({"tweet": "a", "tweet_id": 1, "reply_likes": "3"})", {"'reply_likes' is not a number"},
                        tweet_fields());
  ChatFields texts;
  texts.texts = {"x"};
  expect_record_refused(R"({"prompt": "a"})", {"has no 'x'"}, texts);
  expect_record_refused(R"({"prompt": "a", "x": {}})", {"'x' is a list or an object"}, texts);
  texts.prompt_texts = {"y"};
  expect_record_refused(R"({"prompt": "a", "x": 1})", {"has no 'y'"}, texts);
  EXPECT_EQ(parse_chat_record(R"({"prompt": "a", "x": 1, "y": 2})", texts).prompt_texts, Texts{"2"});
  const std::string messages = R"("messages": [{"role": "user", "content": "u"}])";
  EXPECT_TRUE(parse_chat_record(R"({"x": 1, )" + messages + "}", texts).prompt_texts.empty());
  std::string many = R"({"prompt": "a", "answers": ["b")";
  for (int i = 0; i < 4096; ++i) many += ",\"b\"";
  expect_record_refused(many + "]}", {"at most 4096"});
}

TEST(ChatRecord, DamagedLinesAreSafe) {
  const std::string good =
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}], "answers": ["a"]})";
  const auto parse = [](std::span<const std::byte> bytes) { parse_chat_record(as_text(bytes), {}, ExitCode::data); };
  expect_truncations_fail(good, ExitCode::data, parse);
  EXPECT_GT(expect_flips_are_safe(good, 2000, ExitCode::data, parse), 500);
}

}  // namespace
}  // namespace hrm

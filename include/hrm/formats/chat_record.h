#pragma once
// A record with a prompt and its response, as a JSON object in one of these forms:
//    {"messages": [{"role": "user", "content": "..."}, ..., {"role": "assistant", "content": "..."}]}
//    {"conversations": [{"from": "human", "value": "..."}, ..., {"from": "gpt", "value": "..."}]}     ShareGPT
//    {"prompt": "...", "response": "..."}                       any member names; "completion" for "response"
//    {"prompt": [messages], "completion": [a message]}
//    {"prompt": "...", "answers": ["...", ...]}                 with or without a response; one answer may be a text
//    {"instruction": "...", "input": "...", "output": "..."}    Alpaca, if the record has none of the members above
//
// A conversation may be in a member of any name if the record has neither `messages` nor `prompt` and no other
// conversation. Unnamed members are skipped.
//
// Messages with role and content may have more members (tool_calls, reasoning_content, name, ...), and content may be a
// list of text parts. `tools` is a list of the tools that the assistant can call, or a text with that JSON. The model's
// own template receives all of these unchanged.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

struct ChatMessage {
  std::string role;     // system, developer, user, assistant or tool
  std::string content;  // for several parts: their texts, concatenated
  // The message's JSON object if it has more than role and content as texts; otherwise empty.
  std::string json = {};
  bool operator==(const ChatMessage&) const = default;
};

// The names of a record's members. A record with `messages` counts as a record of messages, whatever else it has.
struct ChatFields {
  std::string messages = "messages";
  std::string prompt = "prompt";
  std::string response = "response";
  std::string answers = "answers";
  std::string tools = "tools";     // empty: tools are not read
  std::string id;                  // text or whole number; empty: not read
  std::string value;               // a number, e.g. reply_likes; empty: not read
  std::vector<std::string> texts;  // other required members: text, number, true or false
  // Other members required in records with a prompt; ignored for records of messages.
  std::vector<std::string> prompt_texts = {};
};

struct ChatRecord {
  std::vector<ChatMessage> messages;  // before the response; empty in a record with a prompt
  std::string prompt;                 // for a record with a prompt
  std::string response;               // the last message if it is the assistant's; empty: no response
  std::string response_json = {};     // ChatMessage::json of the response
  std::string tools = {};             // a list, as JSON; empty: none
  std::string no_response = {};       // why there is no response; empty if there is one, even an empty one
  // All right answers; nullopt: unknown.
  std::optional<std::vector<std::string>> answers;
  std::string id;
  std::optional<double> value;
  std::vector<std::string> texts;              // one per ChatFields::texts
  std::vector<std::string> prompt_texts = {};  // one per ChatFields::prompt_texts; empty for messages
};

// Throws Error(code) with only the reason and the settings that help:
// - A line that is not UTF-8, is longer than kMaxJsonlLine (hrm/formats/jsonl.h) or is not an object.
// - A missing member, or one of another type than above.
// - More than 4,096 messages or answers.
// - A message with an unknown role, a part that is not text, or a weight other than 1.
ChatRecord parse_chat_record(std::string_view line, const ChatFields& fields, ExitCode code = ExitCode::data);

// Whether the response has content: more than white space, or another member of its message than name.
bool says_something(const ChatRecord& record);

}  // namespace hrm

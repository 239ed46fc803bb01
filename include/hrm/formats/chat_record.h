#pragma once
// A record of a prompt and its response, as an object of JSON, in one of these forms:
//   {"messages": [{"role": "user", "content": "..."}, ..., {"role": "assistant", "content": "..."}]}
//   {"conversations": [{"from": "human", "value": "..."}, ..., {"from": "gpt", "value": "..."}]}     ShareGPT
//   {"prompt": "...", "response": "..."}                          members of any name; "completion" for "response"
//   {"prompt": [messages], "completion": [a message]}
//   {"prompt": "...", "answers": ["...", ...]}                    with or without a response; one answer as a text
//   {"instruction": "...", "input": "...", "output": "..."}       Alpaca, where the record has none of the members
//   above
// A conversation may be in a member of any name, where the record has neither `messages` nor `prompt` and no other
// conversation. Members that nothing names are skipped.
//
// Messages of role and content may have more members (tool_calls, reasoning_content, name, ...), and content may be a
// list of parts of text. `tools` is a list of what the assistant can call, also as a text with that JSON. A model's own
// template sees them as they are.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

struct ChatMessage {
  std::string role;     // system, developer, user, assistant or tool
  std::string content;  // of several parts their texts together
  // The message as the record has it, an object of JSON, where it is more than role and content as texts; otherwise
  // empty.
  std::string json = {};
  bool operator==(const ChatMessage&) const = default;
};

// Which member of a record means what. A record with `messages` is one of messages, whatever else it has.
struct ChatFields {
  std::string messages = "messages";
  std::string prompt = "prompt";
  std::string response = "response";
  std::string answers = "answers";
  std::string tools = "tools";                 // empty: none are read
  std::string id;                              // text or whole number; empty: none is read
  std::string value;                           // a number, e.g. reply_likes; empty: none is read
  std::vector<std::string> texts;              // more members that must be there: text, number, true or false
  std::vector<std::string> prompt_texts = {};  // the same of a record of a prompt; one of messages has no use for them
};

struct ChatRecord {
  std::vector<ChatMessage> messages;  // in front of the response; empty in a record of a prompt
  std::string prompt;                 // of a record of a prompt
  std::string response;               // the last message where that is the assistant's; empty: there is none
  std::string response_json = {};     // ChatMessage::json of the response
  std::string tools = {};             // a list of JSON; empty: there is none
  std::string no_response = {};       // why there is none; empty where there is one, if only an empty one
  // All that are right; not given: anything may be.
  std::optional<std::vector<std::string>> answers;
  std::string id;
  std::optional<double> value;
  std::vector<std::string> texts;              // as many as ChatFields::texts
  std::vector<std::string> prompt_texts = {};  // as many as ChatFields::prompt_texts; of messages none
};

// Throws Error(code) with only the reason, and with the settings that fix it: not UTF-8, longer than kMaxJsonlLine
// (hrm/formats/jsonl.h), not an object, a member that is missing or of another type than above, more than 4,096
// messages or answers, a message of another role, a part of a message that is not text, a message with a weight other
// than 1.
ChatRecord parse_chat_record(std::string_view line, const ChatFields& fields, ExitCode code = ExitCode::data);

// Whether the response says something: more than white space, or something in another member of its message than name.
bool says_something(const ChatRecord& record);

}  // namespace hrm

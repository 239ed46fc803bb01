// The first byte chooses the members that are read; the rest is the line. What a record holds is the same when it is
// written and read again. A template made of the prompt gives the prompt's text back, with values in its places.
#include <nlohmann/json.hpp>

#include "fuzz/fuzz.h"
#include "hrm/formats/chat_record.h"
#include "hrm/formats/text_template.h"

using namespace hrm;

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

ordered_json message_of(const std::string& role, const std::string& content, const std::string& whole) {
  return whole.empty() ? ordered_json{{"role", role}, {"content", content}} : ordered_json::parse(whole);
}

std::string written(const ChatRecord& record, const ChatFields& fields) {
  ordered_json line;
  const ordered_json response = message_of("assistant", record.response, record.response_json);
  if (record.messages.empty() && !record.prompt.empty()) {
    line[fields.prompt] = record.prompt;
    line[fields.response] =
        record.response_json.empty() ? ordered_json(record.response) : ordered_json::array({response});
  } else {
    line[fields.messages] = json::array();
    for (const ChatMessage& one : record.messages) {
      line[fields.messages].push_back(message_of(one.role, one.content, one.json));
    }
    line[fields.messages].push_back(response);
  }
  if (!record.tools.empty()) line[fields.tools] = ordered_json::parse(record.tools);
  if (record.answers) line[fields.answers] = *record.answers;
  if (!fields.id.empty()) line[fields.id] = record.id;
  if (record.value) line[fields.value] = *record.value;
  for (size_t i = 0; i < record.texts.size(); ++i) line[fields.texts[i]] = record.texts[i];
  return line.dump();
}

// Every character of the text stands for itself.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '{' ? "{{" : c == '}' ? "}}" : std::string(1, c);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  ChatFields fields;
  if ((data[0] & 1) != 0) fields.id = "id";
  if ((data[0] & 2) != 0) fields.value = "likes";
  if ((data[0] & 4) != 0) fields.texts = {"lang"};
  const std::string_view line = fuzz::text_of(data + 1, size - 1);
  fuzz::parses(ExitCode::data, [&] {
    const ChatRecord one = parse_chat_record(line, fields, ExitCode::data);
    for (const ChatMessage& message : one.messages) {
      fuzz::check(message.role == "system" || message.role == "developer" || message.role == "user" ||
                      message.role == "assistant" || message.role == "tool",
                  "a known role");
    }
    fuzz::check(one.texts.size() == fields.texts.size(), "a text for each name");
    const ChatRecord again = parse_chat_record(written(one, fields), fields, ExitCode::data);
    fuzz::check(again.messages == one.messages && again.prompt == one.prompt && again.response == one.response,
                "the same texts");
    fuzz::check(again.response_json == one.response_json && again.tools == one.tools, "the same members of messages");
    fuzz::check(says_something(again) == says_something(one), "the same answer");
    fuzz::check(again.answers == one.answers && again.id == one.id && again.texts == one.texts, "the same members");
    fuzz::check(again.value.has_value() == one.value.has_value() && again.value.value_or(0) == one.value.value_or(0),
                "the same value");
    const auto none = [](const std::string&) { return std::string(); };
    fuzz::check(TextTemplate(escaped(one.prompt), "t", ExitCode::data).fill(none) == one.prompt, "a text as it is");
    // As a template of somebody else.
    fuzz::parses(ExitCode::data, [&] {
      const TextTemplate text(one.prompt, "t", ExitCode::data);
      fuzz::touch(text.fill([](const std::string& name) { return name; }));
    });
  });
  return 0;
}

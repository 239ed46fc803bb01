#include "hrm/data/chat_prompts.h"

#include <algorithm>
#include <map>

#include "hrm/base/error.h"

namespace hrm::data {

ChatPrompts::ChatPrompts(const ChatEncoder& encoder, ChatFields fields, const std::string& instruction)
    : encoder_(encoder), fields_(std::move(fields)) {
  fields_.texts = encoder.members();
  fields_.prompt_texts.clear();
  if (!instruction.empty()) {
    instruction_.emplace(instruction, "instruction");
    for (const std::string& name : instruction_->names()) {
      if (name != "prompt") fields_.prompt_texts.push_back(name);
    }
  }
  const auto is_text = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), fields_.tools) != names.end();
  };
  if (is_text(fields_.texts) || is_text(fields_.prompt_texts) ||
      is_text({fields_.messages, fields_.prompt, fields_.response, fields_.answers, fields_.id, fields_.value})) {
    fields_.tools.clear();
  }
}

ChatRecord ChatPrompts::read(std::string_view line) const {
  return parse_chat_record(line, fields_);
}

ChatRecord ChatPrompts::record_of(const std::string& prompt) const {
  ChatRecord record;
  record.prompt = prompt;
  const auto fill = [&](const std::vector<std::string>& names, const char* what, std::vector<std::string>& values) {
    for (const std::string& name : names) {
      require(name == fields_.prompt, ExitCode::data, what, " has a place for '", name,
              "', for which a text alone has no value; give a line of JSON with '", fields_.prompt, "' and '", name,
              "'");
      values.push_back(prompt);
    }
  };
  fill(fields_.texts, "the chat template", record.texts);
  fill(fields_.prompt_texts, "chat.instruction", record.prompt_texts);
  return record;
}

std::string ChatPrompts::user_text(const ChatRecord& record) const {
  if (!instruction_) return record.prompt;
  std::map<std::string, std::string> values{{"prompt", record.prompt}};
  for (size_t i = 0; i < fields_.prompt_texts.size(); ++i) values[fields_.prompt_texts[i]] = record.prompt_texts[i];
  return instruction_->fill([&](const std::string& name) { return values.at(name); });
}

ChatPrompts::Asked ChatPrompts::ask(const ChatRecord& record) const {
  Asked asked{.messages = record.messages, .values = record.texts};
  asked.more = {.tools = record.tools, .response = record.response_json};
  if (asked.messages.empty()) asked.messages = {{"user", user_text(record)}};
  return asked;
}

}  // namespace hrm::data

#include "hrm/formats/chat_record.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "hrm/base/text.h"
#include "hrm/formats/json.h"
#include "hrm/formats/jsonl.h"

namespace hrm {
namespace {

using nlohmann::json;

constexpr size_t kMostMessages = 4096;  // messages, or answers
constexpr std::array<std::string_view, 3> kRoles = {"system", "user", "assistant"};

class RecordReader {
 public:
  RecordReader(const json& record, const ChatFields& fields, ExitCode code)
      : record_(record), fields_(fields), code_(code) {}

  ChatRecord read() {
    require(record_.is_object(), code_, "the line is no object");
    ChatRecord out;
    if (record_.contains(fields_.messages)) {
      read_messages(out);
    } else {
      require(record_.contains(fields_.prompt), code_, "has neither ", shown(fields_.messages), " nor ",
              shown(fields_.prompt));
      out.prompt = text(fields_.prompt);
      // What nobody has answered yet: null as well as left out.
      if (const json* response = find(fields_.response)) out.response = text(*response, fields_.response);
      for (const std::string& name : fields_.prompt_texts) out.prompt_texts.push_back(any_text(name));
    }
    if (const json* answers = find(fields_.answers)) out.answers = texts(*answers, fields_.answers);
    if (!fields_.id.empty()) out.id = id();
    if (!fields_.value.empty()) out.value = number();
    for (const std::string& name : fields_.texts) out.texts.push_back(any_text(name));
    return out;
  }

 private:
  static std::string shown(const std::string& name) { return "'" + printable_start(name) + "'"; }

  // Null where the member is missing or null.
  const json* find(const std::string& name) const {
    const auto found = record_.find(name);
    return found == record_.end() || found->is_null() ? nullptr : &*found;
  }
  const json& member(const std::string& name) const {
    const json* found = find(name);
    require(found != nullptr, code_, "has no ", shown(name));
    return *found;
  }
  std::string text(const json& value, const std::string& name) const {
    require(value.is_string(), code_, shown(name), " is no text");
    return value.get<std::string>();
  }
  std::string text(const std::string& name) const { return text(member(name), name); }

  std::vector<std::string> texts(const json& list, const std::string& name) const {
    require(list.is_array() && list.size() <= kMostMessages, code_, shown(name), " is no list of at most ",
            kMostMessages, " texts");
    std::vector<std::string> out;
    for (const json& item : list) out.push_back(text(item, name));
    return out;
  }

  std::string id() const {
    const json& value = member(fields_.id);
    require(value.is_string() || value.is_number_integer(), code_, shown(fields_.id), " is no text or whole number");
    return value.is_string() ? value.get<std::string>() : value.dump();
  }

  std::optional<double> number() const {
    const json* value = find(fields_.value);
    if (value == nullptr) return std::nullopt;
    require(value->is_number(), code_, shown(fields_.value), " is no number");
    return value->get<double>();
  }

  std::string any_text(const std::string& name) const {
    const json* value = find(name);
    require(value != nullptr, code_, "has no ", shown(name), ", for which its prompt has a place");
    require(!value->is_structured(), code_, shown(name), " is a list or an object, which cannot stand in a text");
    return value->is_string() ? value->get<std::string>() : value->dump();
  }

  void read_messages(ChatRecord& out) const {
    const json& list = record_.at(fields_.messages);
    require(list.is_array() && !list.empty() && list.size() <= kMostMessages, code_, shown(fields_.messages),
            " is no list of 1 to ", kMostMessages, " messages");
    for (const json& item : list) out.messages.push_back(message(item, out.messages.size() + 1));
    if (out.messages.back().role != "assistant") return;
    out.response = std::move(out.messages.back().content);
    out.messages.pop_back();
  }

  ChatMessage message(const json& item, size_t number) const {
    const bool good = item.is_object() && item.contains("role") && item["role"].is_string() &&
                      item.contains("content") && item["content"].is_string();
    require(good, code_, "message ", number, " is not of the form {\"role\": \"...\", \"content\": \"...\"}");
    // Something else that is said there, a call of a tool, would be left out of the text.
    for (const auto& [name, value] : item.items()) {
      require(name == "role" || name == "content" || value.is_null(), code_, "message ", number, " has ", shown(name),
              "; only role and content are read");
    }
    ChatMessage out{item["role"].get<std::string>(), item["content"].get<std::string>()};
    require(std::find(kRoles.begin(), kRoles.end(), out.role) != kRoles.end(), code_, "message ", number,
            " has the role ", shown(out.role), "; known are system, user and assistant");
    return out;
  }

  const json& record_;
  const ChatFields& fields_;
  ExitCode code_;
};

}  // namespace

ChatRecord parse_chat_record(std::string_view line, const ChatFields& fields, ExitCode code) {
  check_jsonl_line(line, code);
  const json record = parse_json(line, "record", code, {.bytes = kMaxJsonlLine, .depth = 16});
  return RecordReader(record, fields, code).read();
}

}  // namespace hrm

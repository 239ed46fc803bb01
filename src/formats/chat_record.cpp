#include "hrm/formats/chat_record.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "hrm/base/text.h"
#include "hrm/formats/json.h"
#include "hrm/formats/jsonl.h"

namespace hrm {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kMostMessages = 4096;  // messages, or answers
constexpr size_t kMostMembers = 1024;   // of an object in a record whose members keep their order
constexpr int kDepth = 16;
constexpr size_t kShownMembers = 12;  // in a message

// What the roles of a conversation are called here.
struct RoleName {
  std::string_view name, role;
};
constexpr std::array kRoles = {RoleName{"system", "system"}, RoleName{"user", "user"},
                               RoleName{"assistant", "assistant"}, RoleName{"tool", "tool"},
                               RoleName{"developer", "developer"}};
constexpr std::array kShareGptRoles = {
    RoleName{"human", "user"},        RoleName{"user", "user"},       RoleName{"gpt", "assistant"},
    RoleName{"chatgpt", "assistant"}, RoleName{"model", "assistant"}, RoleName{"assistant", "assistant"},
    RoleName{"system", "system"},     RoleName{"tool", "tool"},       RoleName{"observation", "tool"}};

// Another name of fields.response as it is by default.
constexpr const char* kResponse = "response";
constexpr const char* kCompletion = "completion";
constexpr const char* kMessages = "messages";  // fields.messages as it is by default

bool is_white(const std::string& text) {
  return text.find_first_not_of(" \t\n\v\f\r") == std::string::npos;
}

bool has_text(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string();
}

bool is_share_gpt(const json& message) {
  return message.is_object() && has_text(message, "from") && message.contains("value");
}

bool is_conversation(const json& value) {
  if (!value.is_array() || value.empty()) return false;
  const json& first = value.front();
  if (is_share_gpt(first)) return true;
  return first.is_object() && has_text(first, "role") && (first.contains("content") || first.contains("tool_calls"));
}

bool is_empty(const json& value) {
  return value.is_null() || (value.is_string() && is_white(value.get_ref<const std::string&>())) ||
         (value.is_structured() && value.empty());
}

// The text, or of a list of parts of text all of them.
std::optional<std::string> content_text(const json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const json& part : content) {
    if (!part.is_object() || !has_text(part, "type")) return std::nullopt;
    if (part["type"] == "text" && has_text(part, "text")) text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

class RecordReader {
 public:
  // `line`: the record's text.
  RecordReader(const json& record, std::string_view line, const ChatFields& fields, ExitCode code)
      : record_(record), line_(line), fields_(fields), code_(code) {}

  ChatRecord read() {
    require(record_.is_object(), code_, "the line is not an object");
    ChatRecord out;
    read_form(out);
    if (!fields_.tools.empty()) out.tools = tools();
    if (const json* answers = find(fields_.answers)) out.answers = texts(*answers, fields_.answers);
    if (!fields_.id.empty()) out.id = id();
    if (!fields_.value.empty()) out.value = number();
    for (const std::string& name : fields_.texts) out.texts.push_back(any_text(name));
    return out;
  }

 private:
  void read_form(ChatRecord& out) {
    if (record_.contains(fields_.messages)) return read_conversation(out, fields_.messages);
    if (record_.contains(fields_.prompt)) {
      read_prompt(out);
    } else if (const std::vector<std::string> found = conversations();
               found.size() == 1 && fields_.messages == kMessages) {
      return read_conversation(out, found[0]);
    } else {
      require(found.size() < 2, code_, "has conversations in ", list(found),
              "; name one of them with chat.messages_field");
      require(has_text(record_, "instruction") && has_text(record_, "output"), code_, "has neither ",
              shown(fields_.messages), " nor ", shown(fields_.prompt), "; its members are ", members(),
              ": name the right ones with chat.prompt_field and chat.response_field, or chat.messages_field",
              other_form());
      read_alpaca(out);
    }
    if (!out.messages.empty()) return;
    for (const std::string& name : fields_.prompt_texts) out.prompt_texts.push_back(any_text(name));
  }

  void read_prompt(ChatRecord& out) {
    const json& prompt = member(fields_.prompt);
    if (prompt.is_array()) {
      out.messages = messages(prompt, fields_.prompt);
    } else {
      require(prompt.is_string(), code_, shown(fields_.prompt), " is neither a text nor a list of messages");
      out.prompt = prompt.get<std::string>();
    }
    const bool by_default = fields_.response == kResponse && !record_.contains(kResponse);
    const std::string name = by_default && record_.contains(kCompletion) ? kCompletion : fields_.response;
    if (const json* response = find(name)) return read_response(out, *response, name);
    // What nobody has answered yet.
    if (record_.contains(name)) {
      out.no_response = shown(name) + " is null";
    } else if (prompt.is_array() && out.messages.back().role == "assistant") {
      take_response(out);
    } else {
      const std::vector<std::string> found = conversations();
      out.no_response =
          cat("has no ", shown(name), "; its members are ", members(), ": name the right one with chat.response_field",
              found.empty() ? "" : cat(", or the conversation with chat.messages_field=", found[0]));
    }
  }

  void read_response(ChatRecord& out, const json& response, const std::string& name) const {
    if (!is_conversation(response)) {
      require(response.is_string(), code_, shown(name), " is neither a text nor a list of messages");
      out.response = response.get<std::string>();
      return;
    }
    std::vector<ChatMessage> answer = messages(response, name);
    require(answer.size() == 1 || !out.messages.empty(), code_, shown(name), " has ", answer.size(), " messages, but ",
            shown(fields_.prompt), " is a text; make it a list of messages, too");
    require(answer.back().role == "assistant", code_, shown(name), " ends with a message of role ", answer.back().role,
            ", not of the assistant");
    out.response = std::move(answer.back().content);
    out.response_json = std::move(answer.back().json);
    answer.pop_back();
    out.messages.insert(out.messages.end(), answer.begin(), answer.end());
  }

  void read_alpaca(ChatRecord& out) const {
    out.prompt = text("instruction");
    const std::string input = optional_text("input"), system = optional_text("system");
    if (!is_white(input)) out.prompt += "\n" + input;
    out.response = text("output");
    const json* history = find("history");
    if (is_white(system) && (history == nullptr || history->empty())) return;
    if (!is_white(system)) out.messages.push_back({"system", system});
    if (history != nullptr) {
      require(history->is_array() && history->size() <= kMostMessages / 2, code_, "'history' is not a list of at most ",
              kMostMessages / 2, " pairs of texts");
      for (const json& pair : *history) {
        const bool good = pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string();
        require(good, code_, "'history' is not a list of pairs of texts");
        out.messages.push_back({"user", pair[0].get<std::string>()});
        out.messages.push_back({"assistant", pair[1].get<std::string>()});
      }
    }
    out.messages.push_back({"user", std::exchange(out.prompt, "")});
  }

  void read_conversation(ChatRecord& out, const std::string& name) const {
    const json& list = record_.at(name);
    out.messages = messages(list, name);
    // ShareGPT also has it beside the conversation.
    if (is_share_gpt(list.front()) && out.messages.front().role != "system") {
      const std::string system = optional_text("system");
      if (!is_white(system)) out.messages.insert(out.messages.begin(), {"system", system});
    }
    if (out.messages.back().role == "assistant") return take_response(out);
    out.no_response = cat("the conversation in ", shown(name), " ends with a message of ",
                          out.messages.back().role == "user" ? "the user" : "role " + out.messages.back().role,
                          ", so it has no response to learn from");
  }

  // The last message is what is learned.
  static void take_response(ChatRecord& out) {
    out.response = std::move(out.messages.back().content);
    out.response_json = std::move(out.messages.back().json);
    out.messages.pop_back();
  }

  // The names of the members that hold one, in alphabetical order.
  std::vector<std::string> conversations() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : record_.items()) {
      if (is_conversation(value)) names.push_back(name);
    }
    return names;
  }

  std::string list(const std::vector<std::string>& names) const {
    std::string text;
    for (size_t i = 0; i < std::min(names.size(), kShownMembers); ++i) text += (i == 0 ? "" : ", ") + shown(names[i]);
    return names.size() > kShownMembers ? text + ", ..." : names.empty() ? "none" : text;
  }

  // What a record is that has no known form.
  std::string other_form() const {
    for (const auto& [name, value] : record_.items()) {
      if (!value.is_array()) continue;
      if (value.empty()) return cat("; ", shown(name), " is an empty list");
      const bool records = std::all_of(value.begin(), value.end(), [](const json& one) { return one.is_object(); });
      if (records && record_.size() == 1 && !is_conversation(value)) {
        return cat("; if ", shown(name), " holds the records, take them out of it: jq .", printable_start(name),
                   " FILE > records.json");
      }
    }
    return "";
  }

  std::string members() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : record_.items()) names.push_back(name);
    return list(names);
  }

  static std::string shown(const std::string& name) { return "'" + printable_start(name) + "'"; }

  std::string optional_text(const std::string& name) const {
    const json* value = find(name);
    return value == nullptr ? "" : text(*value, name);
  }

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
    require(value.is_string(), code_, shown(name), " is not a text");
    return value.get<std::string>();
  }
  std::string text(const std::string& name) const { return text(member(name), name); }

  std::vector<std::string> texts(const json& list, const std::string& name) const {
    if (list.is_string()) return {list.get<std::string>()};
    require(list.is_array() && list.size() <= kMostMessages, code_, shown(name),
            " is neither a text nor a list of at most ", kMostMessages, " texts");
    std::vector<std::string> out;
    for (const json& item : list) out.push_back(text(item, name));
    return out;
  }

  std::string id() const {
    const json& value = member(fields_.id);
    require(value.is_string() || value.is_number_integer(), code_, shown(fields_.id),
            " is neither a text nor a whole number");
    return value.is_string() ? value.get<std::string>() : value.dump();
  }

  std::optional<double> number() const {
    const json* value = find(fields_.value);
    if (value == nullptr) return std::nullopt;
    require(value->is_number(), code_, shown(fields_.value), " is not a number");
    return value->get<double>();
  }

  std::string any_text(const std::string& name) const {
    const json* value = find(name);
    require(value != nullptr, code_, "has no ", shown(name), ", for which its prompt has a place");
    require(!value->is_structured(), code_, shown(name), " is a list or an object, which cannot stand in a text");
    return value->is_string() ? value->get<std::string>() : value->dump();
  }

  // The record with its members in the order in which they stand, as a template may write them.
  const ordered_json& ordered() const {
    if (!ordered_) {
      check_members(record_);
      ordered_ = ordered_json::parse(line_);
    }
    return *ordered_;
  }

  // Each member of an ordered object is searched among those before it.
  void check_members(const json& value) const {
    require(!value.is_object() || value.size() <= kMostMembers, code_, "has an object of ", value.size(),
            " members; at most ", kMostMembers,
            " are read in a record with tools, or with messages of several members");
    if (!value.is_structured()) return;
    for (const json& item : value) check_members(item);
  }

  std::string tools() const {
    const json* value = find(fields_.tools);
    if (value == nullptr || (value->is_string() && is_white(value->get_ref<const std::string&>()))) return "";
    const std::string advice = "; name another member with chat.tools_field, or none with chat.tools_field=";
    json parsed;
    ordered_json list;
    if (value->is_string()) {
      const std::string& text = value->get_ref<const std::string&>();
      try {
        parsed = parse_json(text, shown(fields_.tools), code_, {.bytes = kMaxJsonlLine, .depth = kDepth});
      } catch (const Error& error) {
        fail(code_, error.what(), advice);
      }
      check_members(parsed);
      list = ordered_json::parse(text);
      if (list.is_null()) return "";
    } else {
      list = ordered().at(fields_.tools);
    }
    const bool good = list.is_array() && list.size() <= kMostMessages &&
                      std::all_of(list.begin(), list.end(), [](const auto& tool) { return tool.is_object(); });
    require(good, code_, shown(fields_.tools), " is not a list of at most ", kMostMessages, " tools, which are objects",
            advice);
    return list.dump();
  }

  std::vector<ChatMessage> messages(const json& list, const std::string& name) const {
    require(list.is_array() && !list.empty() && list.size() <= kMostMessages, code_, shown(name),
            " is not a list of 1 to ", kMostMessages, " messages");
    std::vector<ChatMessage> out;
    for (const json& item : list) {
      out.push_back(message(item, out.size() + 1));
      if (!is_plain(item)) out.back().json = ordered().at(name).at(out.size() - 1).dump();
    }
    return out;
  }

  ChatMessage message(const json& item, size_t number) const {
    const bool share_gpt = is_share_gpt(item);
    const std::string who = share_gpt ? "from" : "role", what = share_gpt ? "value" : "content";
    const json none, &said = item.is_object() && item.contains(what) ? item[what] : none;
    std::optional<std::string> content;
    if (!share_gpt || said.is_string()) content = content_text(said);
    if (!share_gpt && said.is_null() && has_more(item)) content = "";  // a call of a tool
    require(content && has_text(item, who.c_str()), code_, "message ", number,
            " is not of the form {\"role\": \"...\", \"content\": \"...\"} or {\"from\": \"...\", \"value\": "
            "\"...\"}");
    for (const auto& [name, value] : item.items()) {
      // Something else that is said there would be left out of the text.
      require(!share_gpt || name == who || name == what || value.is_null(), code_, "message ", number, " has ",
              shown(name), "; only ", who, " and ", what, " are read");
      const bool weighs = name == "weight" || name == "train";
      require(!weighs || value.is_null() || value == 1 || value == true, code_, "message ", number, " has ",
              shown(name), " ", value.dump().substr(0, 20),
              ", but what is learned is chosen with chat.learn; leave it out");
    }
    if (said.is_array()) {
      for (const json& part : said) {
        const std::string& type = part["type"].get_ref<const std::string&>();
        require(type == "text" && has_text(part, "text"), code_, "message ", number, " has a part of type ",
                shown(type), "; only parts of type text, with a text, are read");
      }
    }
    const std::string role = item[who].get<std::string>();
    const std::span<const RoleName> known = share_gpt ? std::span<const RoleName>(kShareGptRoles) : kRoles;
    const auto found = std::find_if(known.begin(), known.end(), [&](const RoleName& one) { return one.name == role; });
    if (found == known.end()) {
      std::string names;
      for (const RoleName& one : known) names += cat(names.empty() ? "" : ", ", one.name);
      fail(code_, "message ", number, " has the role ", shown(role), "; known are ", names);
    }
    return {std::string(found->role), *content};
  }

  // Whether the message has a member that is not null besides role and content.
  static bool has_more(const json& item) {
    if (!item.is_object()) return false;
    for (const auto& [name, value] : item.items()) {
      if (name != "role" && name != "content" && !value.is_null()) return true;
    }
    return false;
  }
  // Role and content, texts, are all of it.
  static bool is_plain(const json& item) {
    return is_share_gpt(item) || (has_text(item, "content") && !has_more(item));
  }

  const json& record_;
  std::string_view line_;
  mutable std::optional<ordered_json> ordered_;
  const ChatFields& fields_;
  ExitCode code_;
};

}  // namespace

ChatRecord parse_chat_record(std::string_view line, const ChatFields& fields, ExitCode code) {
  check_jsonl_line(line, code);
  const size_t first = std::min(line.find_first_not_of(" \t\r\n"), line.size());
  require(first == line.size() || line[first] == '{', code,
          "the line is not an object: a record begins with {, and it with '", printable_start(line.substr(first), 20),
          "'");
  const json record = parse_json(line, "record", code, {.bytes = kMaxJsonlLine, .depth = kDepth});
  return RecordReader(record, line, fields, code).read();
}

bool says_something(const ChatRecord& record) {
  if (!is_white(record.response)) return true;
  if (record.response_json.empty()) return false;
  const json message = json::parse(record.response_json);
  for (const auto& [name, value] : message.items()) {
    if (name != "role" && name != "content" && name != "name" && !is_empty(value) &&
        (value.is_string() || value.is_structured())) {
      return true;
    }
  }
  return false;
}

}  // namespace hrm

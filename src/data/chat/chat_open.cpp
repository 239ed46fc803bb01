#include "hrm/data/chat_open.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/config/load.h"
#include "hrm/formats/input_window.h"
#include "hrm/formats/json.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

ChatSide read_side(const fs::path& file, const ChatEncoder& encoder, const ChatDataOptions& options) {
  ChatSide side{std::make_shared<ChatDataset>(file, encoder, options), {}};
  side.examples.resize(side.dataset->size());
  std::iota(side.examples.begin(), side.examples.end(), int64_t{0});
  return side;
}

// The only existing file with one of these names, plain or compressed; empty: none.
fs::path side_file(const fs::path& folder, std::initializer_list<const char*> names, const std::string& suffix) {
  fs::path found;
  std::error_code ignored;
  for (const char* side : names) {
    for (const char* packed : {"", ".gz", ".zst"}) {
      const std::string name = side + suffix + packed;
      if (!fs::exists(folder / name, ignored)) continue;
      require(found.empty(), ExitCode::data, "'", printable(folder.string()), "' holds ", found.filename().string(),
              " and ", name, ", which are names of one side; keep one of them");
      found = folder / name;
    }
  }
  return found;
}

// The file suffix of a folder that is already split: .jsonl, which our own commands write, or .json. Empty if the
// folder is not split.
std::string side_suffix(const fs::path& folder) {
  for (const char* suffix : {".jsonl", ".json"}) {
    if (!side_file(folder, {"train"}, suffix).empty()) return suffix;
  }
  return "";
}

// Warns about other record files in the folder, which the user may expect to be used for training.
void tell_unread(const fs::path& folder, const std::vector<fs::path>& read) {
  const std::string train = read.front().filename().string();
  std::string names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with('.') || content_suffix(name) != ".jsonl") continue;
    const bool known = std::any_of(read.begin(), read.end(), [&](const fs::path& p) { return p.filename() == name; });
    if (!known) names += cat(names.empty() ? "" : ", ", printable(name));
  }
  if (!names.empty()) {
    log::warn("'", printable(folder.string()), "' is split already, by its ", train, ": not read are ", names);
  }
}

// The keys by which another split could contain the same example.
std::vector<std::string> names_of(const ChatExample& example) {
  return {"key " + example.key, "prompt " + example.prompt};
}

}  // namespace

void check_no_leak(const ChatSide& one, const ChatSide& other) {
  if (!one.dataset || !other.dataset) return;
  std::unordered_map<std::string, int64_t> seen;
  for (const int64_t i : one.examples) {
    for (const std::string& name : names_of((*one.dataset)[i])) seen.emplace(name, i);
  }
  for (const int64_t i : other.examples) {
    for (const std::string& name : names_of((*other.dataset)[i])) {
      const auto found = seen.find(name);
      if (found == seen.end()) continue;
      fail(ExitCode::data, other.dataset->place(i), ": its prompt '", printable_start((*other.dataset)[i].prompt, 40),
           "' is also that of ", one.dataset->place(found->second),
           "; leave one of them out, or give a single file to be split");
    }
  }
}

bool is_split_chat_folder(const fs::path& path) {
  return !side_suffix(path).empty();
}

ChatSides open_chat_sides(const fs::path& path, const ChatEncoder& encoder, const ChatDataOptions& options,
                          SplitOptions split, bool stratified) {
  ChatSides sides;
  if (const std::string suffix = side_suffix(path); !suffix.empty()) {
    const fs::path train = side_file(path, {"train"}, suffix), test = side_file(path, {"test"}, suffix);
    const fs::path validation = side_file(path, {"val", "validation", "valid"}, suffix);
    tell_unread(path, {train, validation, test});
    sides.train = read_side(train, encoder, options);
    if (!validation.empty()) sides.validation = read_side(validation, encoder, options);
    if (!test.empty()) sides.test = read_side(test, encoder, options);
    check_no_leak(sides.train, sides.validation);
    check_no_leak(sides.train, sides.test);
    check_no_leak(sides.validation, sides.test);
    return sides;
  }
  require(split.shares.size() == 3, ExitCode::usage, "a split into training, validation and test has 3 shares, not ",
          split.shares.size());
  const auto dataset = std::make_shared<const ChatDataset>(path, encoder, options);
  if (stratified) split.values = dataset->values();
  std::vector<std::vector<int64_t>> parts = split_groups(dataset->keys(), split);
  sides.train = {dataset, std::move(parts[0])};
  sides.validation = {dataset, std::move(parts[1])};
  sides.test = {dataset, std::move(parts[2])};
  return sides;
}

fs::path tokenizer_folder(const config::HfConfig& hf) {
  return hf.tokenizer.empty() ? hf.model : hf.tokenizer;
}

ChatEncoder open_chat_encoder(const config::Config& config) {
  const config::ChatConfig& c = config.chat;
  return open_chat_encoder(tokenizer_folder(config.hf), {.name = c.template_name,
                                                         .thinking = c.thinking,
                                                         .prompt_template = c.prompt_template,
                                                         .response_template = c.response_template,
                                                         .entry = c.template_entry,
                                                         .date = c.date,
                                                         .bos = c.bos});
}

std::vector<std::string> settings_of_earlier_chat(const std::string& config_json,
                                                  const std::map<std::string, std::string>& info,
                                                  const std::vector<std::string>& overrides) {
  const nlohmann::json config =
      parse_json(config_json, "config.json", ExitCode::checkpoint, {.bytes = config::kMaxConfigBytes, .depth = 16});
  const auto chat = config.find("chat");
  if (chat == config.end() || !chat->is_object()) return {};
  const auto given = [&](std::string_view key) -> std::optional<std::string> {
    std::optional<std::string> value;
    for (const std::string& one : overrides) {
      if (one.starts_with(key)) value = one.substr(key.size());
    }
    return value;
  };
  std::vector<std::string> settings;
  const auto stored = chat->find("template");
  if (!chat->contains("tools_field") && !given("chat.tools_field=")) {
    settings.emplace_back("chat.tools_field=");
  }
  if (chat->contains("bos")) return settings;
  std::string name = stored != chat->end() && stored->is_string() ? stored->get<std::string>() : "auto";
  const std::string asked = given("chat.template=").value_or("auto");
  if (const auto known = info.find(kChatTemplate); name == "auto" && known != info.end()) {
    name = known->second;
    if (asked == "auto") settings.push_back("chat.template=" + name);
  }
  if (asked != "auto") name = asked;
  if (name == "plain" && !given("chat.bos=")) settings.emplace_back("chat.bos=off");
  return settings;
}

ChatDataOptions chat_data_options(const config::Config& config, bool need_response) {
  const config::ChatConfig& c = config.chat;
  ChatDataOptions options;
  options.fields.messages = c.messages_field;
  options.fields.prompt = c.prompt_field;
  options.fields.response = c.response_field;
  options.fields.answers = c.answers_field;
  options.fields.tools = c.tools_field;
  options.fields.id = c.id_field;
  options.fields.value = c.value_field;
  options.instruction = c.instruction;
  options.max_tokens = c.max_length;
  options.need_response = need_response;
  options.every_turn = c.learn == config::LearnedTurns::turns;
  options.deduplicate = c.deduplicate;
  options.max_malformed = static_cast<uint64_t>(config.data.max_malformed);
  return options;
}

}  // namespace hrm::data

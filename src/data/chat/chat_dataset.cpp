#include "hrm/data/chat_dataset.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "data/other_data.h"
#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/data/chat_prompts.h"
#include "hrm/formats/input_window.h"
#include "hrm/formats/record_file.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kShownRecords = 10;  // per reason, in the log

// For files in a folder. There, *.json may be anything, so such files are read only if named directly.
bool is_record_file(const fs::path& file) {
  return !file.filename().string().starts_with('.') && content_suffix(file) == ".jsonl";
}

// Whether a file's text begins with a JSON object or array.
bool begins_as_records(const fs::path& file) {
  constexpr size_t kLook = 4096;
  try {
    InputWindow input(file);
    const std::string_view text = input.view(kLook);
    const size_t first = text.find_first_not_of(" \t\r\n");
    return first != std::string_view::npos && (text[first] == '{' || text[first] == '[');
  } catch (const Error&) {
    return false;  // opening the file reports the error
  }
}

std::vector<fs::path> record_files_of(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> files;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (is_record_file(at->path())) files.push_back(at->path());
  }
  return files;
}

std::vector<fs::path> record_files(const fs::path& path) {
  std::error_code error;
  require(fs::exists(path, error), ExitCode::data, "'", printable(path.string()), "' does not exist", other_data(path));
  if (!fs::is_directory(path, error)) {
    const std::string table = begins_as_records(path) ? "" : other_table(path);
    require(table.empty(), ExitCode::data, path.string(), ": ", table);
    return {path};
  }
  std::vector<fs::path> files = record_files_of(path, error);
  require(!error, ExitCode::data, "'", printable(path.string()), "' cannot be read: ", error.message());
  require(!files.empty(), ExitCode::data, "'", printable(path.string()), "' holds no *.jsonl; of *.json files give one",
          other_data(path));
  std::sort(files.begin(), files.end());
  return files;
}

bool is_blank_text(std::string_view text) {
  return text.find_first_not_of(" \t\n\v\f\r") == std::string_view::npos;
}

// The messages before a response, as one text.
std::string said(const std::vector<ChatMessage>& messages) {
  if (messages.size() == 1 && messages[0].role == "user") return messages[0].content;
  std::string text;
  for (const ChatMessage& message : messages) {
    text += (text.empty() ? "" : "\n") + message.role + ": " + message.content;
  }
  return text;
}

// Groups record ids and prompt texts that belong together. Two ids with the same prompt form one group, which has the
// name of the first.
class Groups {
 public:
  // Returns the group of a record.
  int64_t add(const std::string& id, const std::string& prompt) {
    const int64_t by_prompt = find(place_of("prompt " + prompt));
    if (id.empty()) return by_prompt;
    const int64_t by_id = find(place_of("id " + id));
    // The earlier one becomes the root, so that later records do not rename a group.
    root_[std::max(by_id, by_prompt)] = std::min(by_id, by_prompt);
    return std::min(by_id, by_prompt);
  }
  int64_t find(int64_t at) {
    while (root_[at] != at) at = root_[at] = root_[root_[at]];
    return at;
  }

 private:
  int64_t place_of(const std::string& name) {
    const auto [found, is_new] = places_.emplace(name, static_cast<int64_t>(root_.size()));
    if (is_new) root_.push_back(found->second);
    return found->second;
  }
  std::unordered_map<std::string, int64_t> places_;
  std::vector<int64_t> root_;
};

}  // namespace

class ChatDataset::Reader {
 public:
  Reader(ChatDataset& to, const ChatEncoder& encoder, const ChatDataOptions& options)
      : to_(to), encoder_(encoder), options_(options), prompts_(encoder, options.fields, options.instruction) {
    require(
        !options.every_turn || encoder.marks_turns(), ExitCode::usage,
        "chat.learn is turns, but the chat template does not mark what the assistant says ({% generation %}); save one "
        "that does as chat_template.jinja beside tokenizer.json (trl has some, *_training.jinja), or set chat.learn "
        "to response");
    require(options.max_tokens >= 2, ExitCode::usage, "max_tokens is ", options.max_tokens,
            "; an example has at least 2 ids");
  }

  void read_file(size_t number) {
    RecordFile records(to_.files_[number]);
    JsonlLine line;
    for (bool is_first = true; records.next(line); is_first = false) {
      ++to_.counts_.lines;
      const std::string place = cat(to_.files_[number].string(), ":", line.number);
      try {
        read_line(line, static_cast<int32_t>(number), place);
      } catch (const Error& error) {
        if (error.code() != ExitCode::data) throw;
        if (!is_utf8(line.text)) ++to_.counts_.bad_utf8;
        const std::string advice = is_first && !records.is_array() ? spread_record_advice(line.text) : "";
        drop(to_.counts_.malformed, place, error.what() + advice);
        require(static_cast<uint64_t>(to_.counts_.malformed) <= options_.max_malformed, ExitCode::data, place, ": ",
                error.what(), advice, "; malformed lines allowed by data.max_malformed: ", options_.max_malformed);
      }
    }
  }

  // Assigns the group names to the examples.
  void finish() {
    ChatCounts& counts = to_.counts_;
    std::map<int64_t, std::string> names;  // group names by root
    std::unordered_set<std::string> joined;
    for (size_t i = 0; i < groups_of_.size(); ++i) {
      ChatExample& example = to_.examples_[i];
      const std::string& name = names.try_emplace(groups_.find(groups_of_[i]), example.key).first->second;
      if (example.key == name) continue;
      joined.insert(std::move(example.key));
      example.key = name;
    }
    counts.examples = static_cast<int64_t>(to_.examples_.size());
    counts.prompts = static_cast<int64_t>(names.size());
    counts.joined_keys = static_cast<int64_t>(joined.size());
    require(counts.examples > 0, ExitCode::data, to_.origin_, ": no record of it can be used: ", counts.text());
    if (counts.dropped() > 0 || counts.cut_responses > 0) log::warn(to_.origin_, ": ", counts.text());
  }

 private:
  void read_line(const JsonlLine& line, int32_t file, const std::string& place) {
    ChatRecord record = prompts_.read(line.text);
    ChatExample example;
    example.file = file;
    example.line = static_cast<int64_t>(line.number);
    if (record.value) example.value = *record.value;
    const bool asked = record.messages.empty() ? !is_blank_text(record.prompt) : any_text(record.messages);
    if (!asked) return drop(to_.counts_.empty_prompt, place, "the prompt is empty");
    const bool answers = says_something(record);
    if (is_blank_text(record.response)) record.response.clear();
    if (!record.no_response.empty() && options_.need_response) {
      return drop(to_.counts_.no_response, place, record.no_response);
    }
    if (!answers && options_.need_response) {
      return drop(to_.counts_.empty_response, place, "the response is empty");
    }
    if (record.answers) {
      const bool good =
          !record.answers->empty() && std::none_of(record.answers->begin(), record.answers->end(),
                                                   [](const std::string& one) { return is_blank_text(one); });
      if (!good) return drop(to_.counts_.empty_answers, place, "the list of answers, or one of them, is empty");
      example.answers = std::move(*record.answers);
    }
    const ChatPrompts::Asked asked_for = prompts_.ask(record);
    example.prompt = said(asked_for.messages);
    example.response = std::move(record.response);
    example.prompt_ids = encoder_.prompt_ids(asked_for.messages, asked_for.values, asked_for.more);
    // Records with other members or extras have different prompts.
    if (!encoder_.members().empty() || has_more(asked_for)) {
      example.prompt = encoder_.prompt_text(asked_for.messages, asked_for.values, asked_for.more);
    }
    if (options_.every_turn && answers) {
      ChatEncoder::Turns turns = encoder_.turns(asked_for.messages, example.response, asked_for.more);
      example.prompt_ids.assign(turns.ids.begin(), turns.ids.begin() + turns.prompt);
      example.response_ids.assign(turns.ids.begin() + turns.prompt, turns.ids.end());
      example.learned = std::move(turns.learned);
    } else if (answers) {
      example.response_ids = encoder_.response_ids(example.response, asked_for.messages, asked_for.more);
    }
    if (answers && !asked_for.more.response.empty()) {
      // The text that a matching completion would have.
      example.response = encoder_.sampled_text(example.response_ids);
      if (is_blank_text(example.response)) example.response = asked_for.more.response;
    }
    keep(std::move(example), record.id, place);
  }

  static bool has_more(const ChatPrompts::Asked& asked) {
    return !asked.more.tools.empty() || std::any_of(asked.messages.begin(), asked.messages.end(),
                                                    [](const ChatMessage& one) { return !one.json.empty(); });
  }

  static bool any_text(const std::vector<ChatMessage>& messages) {
    return std::any_of(messages.begin(), messages.end(),
                       [](const ChatMessage& one) { return !is_blank_text(one.content); });
  }

  void keep(ChatExample example, const std::string& id, const std::string& place) {
    ChatCounts& counts = to_.counts_;
    const int64_t prompt = static_cast<int64_t>(example.prompt_ids.size());
    if (prompt >= options_.max_tokens) {
      return drop(counts.long_prompt, place,
                  cat("the prompt has ", prompt, " ids, which leaves no room for a response in ", options_.max_tokens));
    }
    if (options_.deduplicate &&
        !seen_.insert(cat(example.prompt.size(), " ", example.prompt, example.response)).second) {
      return drop(counts.duplicates, place, "the same prompt and response stand in an earlier line");
    }
    if (example.ids() > options_.max_tokens) {
      example.response_ids.resize(options_.max_tokens - prompt);
      if (!example.learned.empty()) example.learned.resize(static_cast<size_t>(options_.max_tokens));
      example.is_cut = true;
      ++counts.cut_responses;
    }
    groups_of_.push_back(groups_.add(id, example.prompt));
    example.key = id.empty() ? example.prompt : id;
    to_.examples_.push_back(std::move(example));
  }

  void drop(int64_t& count, const std::string& place, const std::string& reason) {
    if (count < kShownRecords) log::warn("skipped: ", place, ": ", reason);
    ++count;
  }

  ChatDataset& to_;
  const ChatEncoder& encoder_;
  const ChatDataOptions& options_;
  ChatPrompts prompts_;
  Groups groups_;
  std::vector<int64_t> groups_of_;  // one per example
  std::unordered_set<std::string> seen_;
};

std::string ChatCounts::text() const {
  std::string reasons;
  const auto add = [&](int64_t count, const char* what) {
    if (count > 0) reasons += (reasons.empty() ? "" : ", ") + cat(count, " ", what);
  };
  add(malformed, "malformed");
  add(empty_prompt, "with an empty prompt");
  add(no_response, "without a response");
  add(empty_response, "with an empty response");
  add(empty_answers, "with empty answers");
  add(long_prompt, "with a prompt as long as the window");
  add(duplicates, "that an earlier line has, too");
  std::string text = cat(lines, " records: ", examples, " examples of ", prompts, " prompts");
  if (dropped() > 0) text += cat("; dropped ", dropped(), ": ", reasons);
  if (bad_utf8 > 0) text += cat("; ", bad_utf8, " of the malformed are not UTF-8");
  if (cut_responses > 0) text += cat("; ", cut_responses, " responses cut at the window");
  if (joined_keys > 0) text += cat("; ", joined_keys, " ids joined with others of the same prompt");
  return text;
}

bool is_chat_path(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return content_suffix(path) != ".csv" && (is_record_file_name(path) || begins_as_records(path));
  }
  return !record_files_of(path, error).empty();
}

ChatDataset::ChatDataset(const fs::path& path, const ChatEncoder& encoder, const ChatDataOptions& options)
    : origin_(path.string()), meta_(encoder.encoder().meta), files_(record_files(path)) {
  Reader reader(*this, encoder, options);
  for (size_t i = 0; i < files_.size(); ++i) reader.read_file(i);
  reader.finish();
}

std::string ChatDataset::place(int64_t index) const {
  return cat(files_[examples_[index].file].string(), ":", examples_[index].line);
}

std::vector<std::string> ChatDataset::keys() const {
  std::vector<std::string> keys;
  for (const ChatExample& example : examples_) keys.push_back(example.key);
  return keys;
}

std::vector<double> ChatDataset::values() const {
  std::vector<double> values;
  for (const ChatExample& example : examples_) values.push_back(example.value);
  return values;
}

std::vector<std::vector<int64_t>> ChatDataset::examples_of_prompts(std::span<const int64_t> examples) const {
  std::vector<std::vector<int64_t>> prompts;
  std::unordered_map<std::string_view, size_t> places;
  for (const int64_t i : examples) {
    const auto [found, is_new] = places.try_emplace(examples_[i].prompt, prompts.size());
    if (is_new) prompts.emplace_back();
    prompts[found->second].push_back(i);
  }
  return prompts;
}

std::vector<std::string> ChatDataset::right_answers(std::span<const int64_t> examples) const {
  std::vector<std::string> right;
  std::unordered_set<std::string_view> seen;
  const auto add = [&](const std::string& text) {
    if (!text.empty() && seen.insert(text).second) right.push_back(text);
  };
  for (const int64_t i : examples) {
    for (const std::string& answer : examples_[i].answers) add(answer);
  }
  if (!right.empty()) return right;
  for (const int64_t i : examples) add(examples_[i].response);
  return right;
}

}  // namespace hrm::data

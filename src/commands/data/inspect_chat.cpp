#include <algorithm>
#include <ostream>
#include <utility>

#include "data/other_data.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/commands/data.h"
#include "hrm/commands/language_data.h"
#include "hrm/config/load.h"
#include "hrm/config/task_settings.h"
#include "hrm/data/chat_open.h"
#include "hrm/formats/tokenizer_folder.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

// The settings of a training with these files and values. Where there is no file, the model's folder is `folder` unless
// a value names another.
config::Config chat_configuration(const InspectCommand& command, const fs::path& folder) {
  std::vector<std::string> overrides;
  if (command.config_files.empty()) {
    overrides = {"task=polychromic", "polychromic.objective=none", "hf.model=" + folder.string()};
  }
  overrides.insert(overrides.end(), command.overrides.begin(), command.overrides.end());
  config::Config config = config::load_config(command.config_files, overrides).config;
  require(config::task_settings(config).data == config::TrainingData::records, ExitCode::usage,
          "data inspect: prompts and responses are read by task ", "polychromic, and the configuration is of task ",
          config.task, "; give one of task polychromic, or none");
  return config;
}

// `sides` of data that are split already; otherwise all records as one.
std::vector<std::pair<std::string, ChatSide>> open_sides(const fs::path& path, const ChatEncoder& encoder,
                                                         const ChatDataOptions& options) {
  std::vector<std::pair<std::string, ChatSide>> out;
  if (!is_split_chat_folder(path)) {
    out.emplace_back("all", ChatSide{std::make_shared<ChatDataset>(path, encoder, options), {}});
    return out;
  }
  ChatSides sides = open_chat_sides(path, encoder, options, {});
  out.emplace_back("train", std::move(sides.train));
  if (sides.validation.dataset) out.emplace_back("val", std::move(sides.validation));
  if (sides.test.dataset) out.emplace_back("test", std::move(sides.test));
  return out;
}

void print_chat_ids(const char* name, const std::vector<int32_t>& ids, const char* note, const ChatEncoder& encoder,
                    std::ostream& out) {
  out << "    " << name << " (" << ids.size() << " ids" << note << "):";
  for (const int32_t id : ids) out << " " << id;
  out << "\n      \"" << printable(encoder.encoder().decode(ids)) << "\"\n";
}

// All of it: what a template puts is at the ends.
void print_example(const ChatDataset& data, int64_t index, const ChatEncoder& encoder, std::ostream& out) {
  const ChatExample& example = data[index];
  out << "  example " << index << ", " << printable(data.place(index)) << "\n";
  print_chat_ids("prompt", example.prompt_ids, "", encoder, out);
  if (example.response.empty()) {
    out << "    no response, so no labels\n";
  } else {
    print_chat_ids("response", example.response_ids, example.is_cut ? ", cut at chat.max_length" : "", encoder, out);
    if (!example.learned.empty()) {
      out << "    labels: " << std::count(example.learned.begin(), example.learned.end(), uint8_t{1}) << " of "
          << example.ids() << " ids, every turn of the assistant:";
      for (size_t i = 0; i < example.learned.size(); ++i) {
        if (example.learned[i] == 1) out << " " << i;
      }
      out << "\n";
    } else {
      out << "    labels from id " << example.prompt_ids.size() << " of " << example.ids() << " on: the response\n";
    }
  }
  if (example.answers.empty()) return;
  out << "    right answers (" << example.answers.size() << "):";
  for (const std::string& answer : example.answers) out << " \"" << printable(answer) << "\"";
  out << "\n";
}

void print_counts(const std::string& name, const ChatDataset& data, std::ostream& out) {
  int64_t prompts = 0, responses = 0, longest_prompt = 0, longest_response = 0;
  for (const ChatExample& example : data.examples()) {
    const auto prompt = static_cast<int64_t>(example.prompt_ids.size());
    const auto response = static_cast<int64_t>(example.response_ids.size());
    prompts += prompt;
    responses += response;
    longest_prompt = std::max(longest_prompt, prompt);
    longest_response = std::max(longest_response, response);
  }
  out << name << ": " << data.counts().text() << "\n  prompt ids " << prompts / data.size() << " on average, "
      << longest_prompt << " at most; response ids " << responses / data.size() << " on average, " << longest_response
      << " at most\n";
}

}  // namespace

void inspect_chat(const InspectCommand& command, std::ostream& out) {
  const fs::path path = command.path;
  std::error_code ignored;
  require(fs::exists(path, ignored), ExitCode::data, "'", printable(path.string()), "' does not exist",
          other_data(path));
  fs::path beside = fs::is_directory(path, ignored) ? path : path.parent_path();
  if (beside.empty()) beside = ".";
  const config::Config config = chat_configuration(command, beside);
  const fs::path folder = tokenizer_folder(config.hf);
  require(folder != beside || has_tokenizer(folder), ExitCode::usage, "data inspect: no tokenizer is named, and '",
          printable(beside.string()), "' holds no tokenizer.json; give the folder of one with hf.tokenizer=FOLDER");
  const ChatEncoder encoder = open_chat_encoder(config);
  // As PolychromicTask: GRPO alone needs no responses.
  const auto sides =
      open_sides(path, encoder, chat_data_options(config, /*need_response=*/config.grpo.start_step != 1));
  const ChatDataset* largest = sides.front().second.dataset.get();
  for (const auto& [name, side] : sides) {
    if (side.dataset->size() > largest->size()) largest = side.dataset.get();
  }
  require(command.example >= 0 && command.example < largest->size(), ExitCode::usage, "--example ", command.example,
          " is not one of the ", largest->size(), " examples of ", printable(largest->origin()));
  const LanguageMeta& meta = encoder.encoder().meta;
  out << path.string() << ": prompts and responses, template " << encoder.name() << ", tokenizer "
      << encoder.encoder().file.string() << ", vocabulary " << meta.vocab_size << ", up to " << config.chat.max_length
      << " ids\n";
  for (const auto& [name, side] : sides) {
    print_counts(name, *side.dataset, out);
    if (command.example < side.dataset->size()) print_example(*side.dataset, command.example, encoder, out);
  }
}

}  // namespace hrm::data

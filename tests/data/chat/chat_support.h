#pragma once
// Small prompts and responses for the tests of this folder.

#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "data/data_support.h"
#include "data/tokenizer/tokenizer_cases.h"
#include "hrm/base/file.h"
#include "hrm/data/chat_dataset.h"
#include "support/temp_dir.h"

namespace hrm::data {

using config::ChatTemplateKind;
using config::ChatThinking;

// Of tests/fixtures/tokenizer; the text of a chat's end is <|im_end|>, padding <|endoftext|>.
inline constexpr int32_t kEndOfText = 1500, kImStart = 1501, kImEnd = 1502, kThink = 1503, kThinkEnd = 1504;

// A folder as transformers writes it, with the tokenizer of the fixture.
inline std::filesystem::path chat_folder(const std::filesystem::path& folder, const std::string& config) {
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(fixture("tokenizer") / "tokenizer.json", folder / "tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  if (!config.empty()) write_text(folder / "tokenizer_config.json", config);
  return folder;
}
// Its template never thinks: an empty thought is part of the prompt.
inline const char* kQwenConfig =
    R"({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": [{"name": "default", "template":)"
    R"("{% for m in messages %}<|im_start|>{{ m.role }}\n)"
    R"({% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n)"
    R"({% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"}]})";

// Every byte an id; BOS 256, EOS 257, padding 258.
inline ChatEncoder byte_chat(ChatTemplateOptions options = {.name = ChatTemplateKind::plain}) {
  return ChatEncoder(byte_encoder(), options);
}

inline std::string chat_line(const std::string& prompt, const std::string& response) {
  const nlohmann::json line = {{"prompt", prompt}, {"response", response}};
  return line.dump() + "\n";
}

inline std::shared_ptr<const ChatDataset> byte_dataset(const std::filesystem::path& file, const std::string& text,
                                                       const ChatDataOptions& options = {}) {
  write_text(file, text);
  return std::make_shared<ChatDataset>(file, byte_chat(), options);
}

// Example i: prompt "p<i> " and i % 7 + 1 letters as the response; 5 to 13 ids with EOS for i below 10.
inline std::string numbered_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += chat_line("p" + std::to_string(i) + " ", std::string(i % 7 + 1, static_cast<char>('a' + i % 26)));
  }
  return text;
}

inline std::vector<int64_t> all_of(const ChatDataset& dataset) {
  std::vector<int64_t> examples(dataset.size());
  std::iota(examples.begin(), examples.end(), int64_t{0});
  return examples;
}

}  // namespace hrm::data

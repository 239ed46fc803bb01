#include "hrm/data/chat_template.h"

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/text.h"
#include "hrm/formats/tokenizer_folder.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBosField = "{bos}", kEosField = "{eos}", kResponseField = "{response}";
constexpr std::string_view kSpace = " \t\n\v\f\r";
constexpr uint64_t kConfigBytes = uint64_t{16} << 20;
// In chat_template.jinja, which newer versions of the library write in place of the member chat_template.
constexpr const char* kJinjaFile = "chat_template.jinja";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace

std::string recognise_chat_template(const TokenizerConfig& config, const std::string& origin) {
  if (config.chat_template.find("<|im_start|>") != std::string::npos) return "chatml";
  if (config.chat_template.find("<|start_header_id|>") != std::string::npos) return "llama3";
  fail(ExitCode::usage, origin,
       config.chat_template.empty() ? ": has no chat_template" : ": its chat_template is of no known family",
       "; name the template: chatml, llama3, plain or custom");
}

ChatEncoder::ChatEncoder(TextEncoder encoder, const ChatTemplateOptions& options)
    : encoder_(std::move(encoder)), options_(options) {
  const std::string& name = options_.name;
  require(name == "chatml" || name == "llama3" || name == "plain" || name == "custom", ExitCode::usage,
          "a chat template is chatml, llama3, plain or custom, not '", printable_start(name), "'");
  require(options_.thinking == "auto" || options_.thinking == "on" || options_.thinking == "off", ExitCode::usage,
          "thinking of a chat template is auto, on or off, not '", printable_start(options_.thinking), "'");
  require(name == "custom" || (options_.prompt_template.empty() && options_.response_template.empty()), ExitCode::usage,
          "the chat template ", name, " has its own texts; choose custom for a prompt_template and a ",
          "response_template");
  if (name == "custom") {
    set_custom();
  } else if (name == "plain") {
    eos_ = true;
  } else {
    const bool knows = encoder_.id_of("<think>") && encoder_.id_of("</think>");
    set_family(/*thinks=*/options_.thinking == "on" || (options_.thinking == "auto" && !knows));
  }
  require(!bos_ || encoder_.meta.bos_id >= 0, ExitCode::usage,
          "the chat template begins a prompt with BOS, but the tokenizer names no such token");
  require(!eos_ || encoder_.meta.eos_id >= 0, ExitCode::usage, "the chat template ", name,
          " ends a response with EOS, but the tokenizer names no such token");
  if (eos_) stop_ids_ = {encoder_.meta.eos_id};
}

void ChatEncoder::set_family(bool thinks) {
  std::vector<std::string> tokens;
  std::string end;
  if (options_.name == "chatml") {
    end = "<|im_end|>";
    tokens = {"<|im_start|>", end};
    before_role_ = "<|im_start|>";
    after_role_ = "\n";
    after_content_ = after_response_ = "<|im_end|>\n";
    if (!thinks) {
      after_assistant_ = "<think>\n\n</think>\n\n";
      tokens.insert(tokens.end(), {"<think>", "</think>"});
    }
  } else {
    end = "<|eot_id|>";
    tokens = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", end};
    begin_ = "<|begin_of_text|>";
    before_role_ = "<|start_header_id|>";
    after_role_ = "<|end_header_id|>\n\n";
    after_content_ = after_response_ = end;
    trims_ = true;
  }
  check_tokens(tokens);
  stop_ids_ = {*encoder_.id_of(end)};
  const int64_t eos = encoder_.meta.eos_id;
  if (eos >= 0 && eos != stop_ids_[0]) stop_ids_.push_back(eos);
}

void ChatEncoder::check_tokens(const std::vector<std::string>& tokens) {
  for (const std::string& token : tokens) {
    require(encoder_.id_of(token).has_value(), ExitCode::usage, "the chat template ", options_.name,
            " does not fit the tokenizer '",
            encoder_.file.empty() ? encoder_.meta.tokenizer_file : encoder_.file.string(), "', which has no token ",
            token, token.ends_with("think>") ? "; set thinking to on, or to auto" : "; choose another template");
  }
}

void ChatEncoder::set_custom() {
  std::string_view prompt = options_.prompt_template, response = options_.response_template;
  bos_ = prompt.starts_with(kBosField);
  if (bos_) prompt.remove_prefix(kBosField.size());
  eos_ = response.ends_with(kEosField);
  if (eos_) response.remove_suffix(kEosField.size());
  prompt_ = std::make_shared<TextTemplate>(prompt, "prompt_template");
  response_ = std::make_shared<TextTemplate>(response, "response_template");
  for (const std::string& name : prompt_->names()) {
    require(name != "bos", ExitCode::usage, "prompt_template: {bos} can only stand at the beginning");
    if (name != "prompt") members_.push_back(name);
  }
  require(!prompt_->names().empty(), ExitCode::usage, "prompt_template: has no place for a text, such as {prompt}");
  require(response_->names() == std::vector<std::string>{"response"} &&
              response.find(kResponseField) == response.rfind(kResponseField),
          ExitCode::usage, "response_template: must have the place {response} once, and may end with {eos}; other ",
          "places it has none");
  // What follows it, with braces as they are meant.
  stop_text_ =
      TextTemplate(response.substr(response.rfind(kResponseField) + kResponseField.size()), "response_template")
          .fill([](const std::string&) { return std::string(); });
  require(eos_ || !stop_text_.empty(), ExitCode::usage,
          "response_template: nothing ends a response; put {eos} or a text behind {response}");
}

const std::string& ChatEncoder::single_message(const std::vector<ChatMessage>& messages) const {
  require(messages.size() == 1 && messages[0].role == "user", ExitCode::data, "the chat template ", options_.name,
          " takes one message of the user before the response, not ", messages.size(),
          messages.size() == 1 ? " of another role" : "", "; chatml and llama3 take more");
  return messages[0].content;
}

std::string ChatEncoder::prompt_text(const std::vector<ChatMessage>& messages,
                                     const std::vector<std::string>& values) const {
  require(values.size() == members_.size(), ExitCode::unexpected, values.size(), " values for ", members_.size(),
          " members of a chat template");
  if (options_.name == "plain") return single_message(messages);
  if (options_.name == "custom") {
    const std::string& prompt = single_message(messages);
    return prompt_->fill([&](const std::string& name) {
      if (name == "prompt") return prompt;
      return values[std::find(members_.begin(), members_.end(), name) - members_.begin()];
    });
  }
  std::string text = begin_;
  for (const ChatMessage& message : messages) {
    text += before_role_ + message.role + after_role_;
    text += trims_ ? trimmed(message.content) : std::string_view(message.content);
    text += after_content_;
  }
  return text + before_role_ + "assistant" + after_role_ + after_assistant_;
}

std::string ChatEncoder::response_text(const std::string& content) const {
  if (response_) {
    return response_->fill([&](const std::string&) { return content; });
  }
  return std::string(trims_ ? trimmed(content) : std::string_view(content)) + after_response_;
}

std::vector<int32_t> ChatEncoder::ids_of(const std::string& text) const {
  std::vector<int32_t> ids = encoder_.encode(text);
  for (const int32_t id : ids) {
    require(id >= 0 && id < encoder_.meta.vocab_size, ExitCode::data, "the tokenizer gives id ", id,
            ", which is outside the vocabulary of ", encoder_.meta.vocab_size);
  }
  return ids;
}

std::vector<int32_t> ChatEncoder::prompt_ids(const std::vector<ChatMessage>& messages,
                                             const std::vector<std::string>& values) const {
  std::vector<int32_t> ids = ids_of(prompt_text(messages, values));
  if (bos_) ids.insert(ids.begin(), static_cast<int32_t>(encoder_.meta.bos_id));
  return ids;
}

std::vector<int32_t> ChatEncoder::response_ids(const std::string& content) const {
  std::vector<int32_t> ids = ids_of(response_text(content));
  if (eos_) ids.push_back(static_cast<int32_t>(encoder_.meta.eos_id));
  return ids;
}

std::string ChatEncoder::description() const {
  return cat(options_.name, "\n", after_assistant_, "\n", options_.prompt_template, "\n", options_.response_template);
}

TokenizerFolder open_tokenizer_folder(const fs::path& folder) {
  TokenizerFolder result;
  const fs::path file = folder / "tokenizer_config.json", jinja = folder / kJinjaFile;
  std::error_code ignored;
  if (fs::exists(file, ignored)) {
    result.config = parse_tokenizer_config(read_text(file, ExitCode::data, kConfigBytes), file.string());
  }
  if (result.config.chat_template.empty() && fs::exists(jinja, ignored)) {
    result.config.chat_template = read_text(jinja, ExitCode::data, kConfigBytes);
  }
  const FolderTokenizer found = read_folder_tokenizer(folder);
  result.encoder = open_tokenizer(folder, "", "");
  result.encoder.file = found.file;
  LanguageMeta& meta = result.encoder.meta;
  const auto id_of = [&](const std::string& token, const char* key, int64_t none) -> int64_t {
    if (token.empty()) return none;
    const std::optional<int32_t> id = result.encoder.id_of(token);
    require(id.has_value(), ExitCode::data, file.string(), ": its ", key, " '", printable_start(token),
            "' is no token of the tokenizer.json beside it");
    return *id;
  };
  meta.bos_id = id_of(result.config.bos_token, "bos_token", -1);
  meta.eos_id = id_of(result.config.eos_token, "eos_token", -1);
  // Padding is masked and never learned from, so that any id will do.
  meta.pad_id = id_of(result.config.pad_token, "pad_token", meta.eos_id >= 0 ? meta.eos_id : meta.pad_id);
  meta.tokenizer_file = "tokenizer.json";
  meta.tokenizer_digest = digest_hex(as_bytes(found.text));
  return result;
}

ChatEncoder open_chat_encoder(const fs::path& folder, ChatTemplateOptions options) {
  TokenizerFolder opened = open_tokenizer_folder(folder);
  if (options.name == "auto") {
    options.name = recognise_chat_template(opened.config, (folder / "tokenizer_config.json").string());
  }
  return ChatEncoder(std::move(opened.encoder), options);
}

}  // namespace hrm::data

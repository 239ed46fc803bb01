#pragma once
// What stands around the messages of a chat for a family of models, and the ids of that. A few forms are built in, in
// place of the Jinja programs of tokenizer_config.json. No torch here.
//
//   chatml  <|im_start|>ROLE\nCONTENT<|im_end|>\n for each message, then <|im_start|>assistant\n (Qwen). Without
//           thinking <think>\n\n</think>\n\n follows, part of the prompt. A response ends with <|im_end|>\n.
//   llama3  <|begin_of_text|>, <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|> for each message, content
//           without white space around it, then <|start_header_id|>assistant<|end_header_id|>\n\n. A response ends with
//           <|eot_id|>.
//   plain   the one message of the user as it stands. A response ends with EOS.
//   custom  two templates of one's own (hrm/formats/text_template.h), for the one message of the user.
//
// Prompt and response become ids separately, so that a prompt has the same ids in training and in front of a sampled
// answer. As in the transformers library, a special token that is written out in a message becomes that token.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/data/text_encoder.h"
#include "hrm/formats/chat_record.h"
#include "hrm/formats/text_template.h"
#include "hrm/formats/tokenizer_config.h"

namespace hrm::data {

struct ChatTemplateOptions {
  std::string name = "auto";      // auto: by tokenizer_config.json; chatml, llama3, plain or custom
  std::string thinking = "auto";  // chatml: off, on, or auto: off where the tokenizer has <think> and </think>
  // custom: places {prompt}, the user's text, and {member} of the record; {bos} at the beginning.
  std::string prompt_template = "";
  // custom: the place {response}, and behind it what ends it: text, or {eos} at the end.
  std::string response_template = "";
};

// chatml or llama3, told by the special tokens in chat_template. Throws Error(usage) that asks to name a template where
// neither is there.
std::string recognise_chat_template(const TokenizerConfig& config, const std::string& origin);

// A template and the tokenizer that it is for. Copies share the tokenizer; several threads may use it at a time.
class ChatEncoder {
 public:
  // Throws Error(usage): options that are none (auto is to be resolved before), a template whose special tokens the
  // tokenizer lacks.
  ChatEncoder(TextEncoder encoder, const ChatTemplateOptions& options);

  // Without auto.
  const std::string& name() const { return options_.name; }
  // Members of a record that the prompt's template names, besides prompt and bos.
  const std::vector<std::string>& members() const { return members_; }

  // The text up to where the assistant's response begins. `values`: of members(). Throws Error(data), the reason alone,
  // for messages that the template has no place for.
  std::string prompt_text(const std::vector<ChatMessage>& messages, const std::vector<std::string>& values = {}) const;
  // The response and what ends it.
  std::string response_text(const std::string& content) const;
  // Their ids, with BOS and EOS where the template has them. Throws Error(data) as above.
  std::vector<int32_t> prompt_ids(const std::vector<ChatMessage>& messages,
                                  const std::vector<std::string>& values = {}) const;
  std::vector<int32_t> response_ids(const std::string& content) const;

  // Ids of which each one ends a sampled answer; none where the template ends one with a text (stop_text).
  const std::vector<int64_t>& stop_ids() const { return stop_ids_; }
  const std::string& stop_text() const { return stop_text_; }
  const TextEncoder& encoder() const { return encoder_; }
  // All that changes ids, for digests.
  std::string description() const;

 private:
  void set_family(bool thinks);
  void set_custom();
  void check_tokens(const std::vector<std::string>& tokens);
  const std::string& single_message(const std::vector<ChatMessage>& messages) const;
  std::vector<int32_t> ids_of(const std::string& text) const;

  TextEncoder encoder_;
  ChatTemplateOptions options_;
  // Of a family with roles.
  std::string begin_, before_role_, after_role_, after_content_, after_assistant_, after_response_;
  bool trims_ = false;
  // Of custom.
  std::shared_ptr<const TextTemplate> prompt_, response_;
  std::vector<std::string> members_;
  bool bos_ = false, eos_ = false;
  std::vector<int64_t> stop_ids_;
  std::string stop_text_;
};

// The tokenizer of a folder of the transformers library: tokenizer.json, with the special tokens that
// tokenizer_config.json names, where there is one. Throws Error(data) for files that are wrong.
struct TokenizerFolder {
  TextEncoder encoder;
  TokenizerConfig config;
};
TokenizerFolder open_tokenizer_folder(const std::filesystem::path& folder);
// The same with its template. Throws as above, recognise_chat_template and ChatEncoder.
ChatEncoder open_chat_encoder(const std::filesystem::path& folder, ChatTemplateOptions options);

}  // namespace hrm::data

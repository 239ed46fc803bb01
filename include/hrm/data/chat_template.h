#pragma once
// Chat templates: the text around the messages of a chat, and its token ids.
// This header does not depend on torch.
//
//   model   the template in the tokenizer's folder, run as in transformers (hrm/formats/jinja.h). The prompt is its
//           output for the messages with add_generation_prompt. The response is the text that one more message, the
//           answer, adds behind it. A response ends with the special token that the template writes there, or EOS.
//   chatml  <|im_start|>ROLE\nCONTENT<|im_end|>\n for each message, then <|im_start|>assistant\n (Qwen). Without
//           thinking, <think>\n\n</think>\n\n follows as part of the prompt. A response ends with <|im_end|>\n.
//   llama3  <|begin_of_text|>, <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|> for each message, content
//           without surrounding white space, then <|start_header_id|>assistant<|end_header_id|>\n\n. A response ends
//           with <|eot_id|>.
//   plain   one user message, after BOS if tokenizer.json adds it. A response ends with EOS.
//   custom  two user-defined templates (hrm/formats/text_template.h) for one user message.
//
// Prompt and response are tokenized separately, so that a prompt has the same ids in training and in sampling. As in
// the transformers library, a special token that is spelled out in a message becomes that token.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/config/fine_tuning_settings.h"
#include "hrm/data/text_encoder.h"
#include "hrm/formats/chat_record.h"
#include "hrm/formats/jinja.h"
#include "hrm/formats/text_template.h"
#include "hrm/formats/tokenizer_config.h"

namespace hrm::data {

// The folder, next to tokenizer.json, that holds the non-default templates.
inline constexpr const char* kNamedTemplates = "additional_chat_templates";
// The path of a copied tokenizer file relative to its new folder: its name, under kNamedTemplates for a named template.
inline std::filesystem::path place_beside_tokenizer(const std::filesystem::path& file) {
  return file.parent_path().filename() == kNamedTemplates ? kNamedTemplates / file.filename() : file.filename();
}

struct ChatTemplateOptions {
  // automatic: model if the folder has a template.
  config::ChatTemplateKind name = config::ChatTemplateKind::automatic;
  // chatml: off, on, or automatic, which is off if the tokenizer has <think> and </think>. model: the value of
  // enable_thinking; automatic leaves it undefined.
  config::ChatThinking thinking = config::ChatThinking::automatic;
  // custom: the places {prompt} (the user's text) and {member} of the record; {bos} only at the beginning.
  std::string prompt_template = "";
  // custom: the place {response}, then the text that ends the response, or {eos} at the end.
  std::string response_template = "";
  // model: the name of the template, if there are several; empty: default.
  std::string entry = "";
  // model: the date that templates see as the current one, e.g. "2026-11-25"; empty: the real date.
  std::string date = "";
  // plain: automatic adds BOS as tokenizer.json says; off adds none.
  config::ChatBos bos = config::ChatBos::automatic;
};

// The model's own template, from a tokenizer's folder.
struct ModelTemplate {
  std::string text, origin;  // Jinja source; its file and name, for messages
  TokenizerConfig tokens;    // the special tokens that the template can use
};

// Parts of a record besides texts, for the model's own template.
struct ChatExtras {
  std::string tools = {};     // ChatRecord::tools
  std::string response = {};  // ChatMessage::json of the response
};

// 1 for each token of the output's text that a {% generation %} block wrote, at least partly. Equals transformers'
// return_assistant_tokens_mask. Throws Error(data), with only the reason, if the ids do not match the text.
std::vector<uint8_t> generated_marks(const JinjaOutput& output, const std::vector<int32_t>& ids,
                                     const TextEncoder& encoder);

// A chat template with its tokenizer. Copies share the tokenizer; several threads may use one object.
class ChatEncoder {
 public:
  // Throws Error(usage) for the name automatic, which the caller must resolve first, and if the tokenizer lacks the
  // template's special tokens. Throws Error(data) if the model's template cannot be run. `model`: only for the name
  // model.
  ChatEncoder(TextEncoder encoder, const ChatTemplateOptions& options, const ModelTemplate& model = {});

  // Never automatic.
  config::ChatTemplateKind name() const { return options_.name; }
  // Members of a record that the prompt template uses, besides prompt and bos.
  const std::vector<std::string>& members() const { return members_; }

  // The text up to the beginning of the assistant's response. `values`: of members(). Throws Error(data), with only the
  // reason, for messages that the template does not support.
  std::string prompt_text(const std::vector<ChatMessage>& messages, const std::vector<std::string>& values = {},
                          const ChatExtras& more = {}) const;
  // The text of the response with its end. Only the model's own template uses `messages`. Throws Error(data), with only
  // the reason, if that template does not write the answer directly after its prompt.
  std::string response_text(const std::string& content, const std::vector<ChatMessage>& messages = {},
                            const ChatExtras& more = {}) const;
  // The token ids of these texts, with BOS and EOS if the template adds them. Throws Error(data) as above.
  std::vector<int32_t> prompt_ids(const std::vector<ChatMessage>& messages, const std::vector<std::string>& values = {},
                                  const ChatExtras& more = {}) const;
  std::vector<int32_t> response_ids(const std::string& content, const std::vector<ChatMessage>& messages = {},
                                    const ChatExtras& more = {}) const;
  // A response as sampling returns it: without its end and without special tokens.
  std::string sampled_text(const std::vector<int32_t>& response_ids) const;

  // A whole conversation tokenized as one text. `learned` is 1 for each token that the template marks as the
  // assistant's ({% generation %}), in every turn, like transformers' return_assistant_tokens_mask. `prompt` is the
  // number of tokens before the last assistant turn.
  struct Turns {
    std::vector<int32_t> ids;
    std::vector<uint8_t> learned;
    int64_t prompt = 0;
  };
  // Whether the template marks the assistant's turns.
  bool marks_turns() const { return model_ && model_->marks_generation(); }
  // Throws Error(data), with only the reason, also if the answer is not marked or the ids do not match the text.
  Turns turns(const std::vector<ChatMessage>& messages, const std::string& response, const ChatExtras& more = {}) const;

  // Each of these ids ends a completion. Empty if a text (stop_text) ends it.
  const std::vector<int64_t>& stop_ids() const { return stop_ids_; }
  const std::string& stop_text() const { return stop_text_; }
  const TextEncoder& encoder() const { return encoder_; }
  // Everything that affects token ids, for digests.
  std::string description() const;

 private:
  void set_family(bool thinks);
  void set_custom();
  void set_model(const ModelTemplate& model);
  // The output of the model's own template.
  JinjaOutput run(const std::vector<ChatMessage>& messages, bool asks, const std::string& tools) const;
  // Throws if a template other than model gets extra message members or tools.
  void refuse_extras(const std::vector<ChatMessage>& messages, const ChatExtras& more) const;
  // The special token that the template writes after an answer; -1: unknown.
  int64_t end_of_answer() const;
  void check_tokens(const std::vector<std::string>& tokens);
  const std::string& single_message(const std::vector<ChatMessage>& messages) const;
  std::vector<int32_t> ids_of(const std::string& text) const;

  TextEncoder encoder_;
  ChatTemplateOptions options_;
  // For the templates with roles (chatml, llama3).
  std::string begin_, before_role_, after_role_, after_content_, after_assistant_, after_response_;
  bool trims_ = false;
  // For custom.
  std::shared_ptr<const TextTemplate> prompt_, response_;
  std::vector<std::string> members_;
  // For model.
  std::shared_ptr<const JinjaTemplate> model_;
  std::shared_ptr<const nlohmann::ordered_json> variables_;
  JinjaOptions limits_;
  std::string model_digest_;
  bool bos_ = false, eos_ = false;
  std::vector<int64_t> stop_ids_;
  std::string stop_text_;
};

// Opens the tokenizer in a transformers folder: tokenizer.json, with the special tokens that tokenizer_config.json
// names, if that file exists. Throws Error(data) for malformed files.
struct TokenizerFolder {
  TextEncoder encoder;
  TokenizerConfig config;
  // The source of each of config.chat_templates, by template name, for messages.
  std::map<std::string, std::string> template_origins;
};
TokenizerFolder open_tokenizer_folder(const std::filesystem::path& folder);
// The tokenizer with its template. Throws as above and like ChatEncoder. Throws Error(usage) if the folder has no
// template, or has several and none is called default; the message asks for a template's name.
ChatEncoder open_chat_encoder(const std::filesystem::path& folder, ChatTemplateOptions options);

}  // namespace hrm::data

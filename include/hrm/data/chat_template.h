#pragma once
// What stands around the messages of a chat, and the ids of that. No torch here.
//
//   model   the template of the tokenizer's folder, run as transformers runs it (hrm/formats/jinja.h). The prompt is
//   its
//           text for the messages with add_generation_prompt. The response is what it writes behind that when the
//           answer is one message more. A response ends with the special token that the template puts there, or EOS.
//   chatml  <|im_start|>ROLE\nCONTENT<|im_end|>\n for each message, then <|im_start|>assistant\n (Qwen). Without
//           thinking <think>\n\n</think>\n\n follows, part of the prompt. A response ends with <|im_end|>\n.
//   llama3  <|begin_of_text|>, <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|> for each message, content
//           without white space around it, then <|start_header_id|>assistant<|end_header_id|>\n\n. A response ends with
//           <|eot_id|>.
//   plain   the one message of the user, with BOS in front where tokenizer.json says so. A response ends with EOS.
//   custom  two templates of one's own (hrm/formats/text_template.h), for the one message of the user.
//
// Prompt and response become ids separately, so that a prompt has the same ids in training and in front of a sampled
// answer. As in the transformers library, a special token that is written out in a message becomes that token.

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

// The folder, beside tokenizer.json, of templates that are not the default.
inline constexpr const char* kNamedTemplates = "additional_chat_templates";
// Where a copy of a tokenizer's file belongs in a folder: its name, in that folder for such a template.
inline std::filesystem::path place_beside_tokenizer(const std::filesystem::path& file) {
  return file.parent_path().filename() == kNamedTemplates ? kNamedTemplates / file.filename() : file.filename();
}

struct ChatTemplateOptions {
  // automatic: model where the folder has a template.
  config::ChatTemplateKind name = config::ChatTemplateKind::automatic;
  // chatml: off, on, or automatic: off where the tokenizer has <think> and </think>. model: enable_thinking, which
  // automatic leaves out.
  config::ChatThinking thinking = config::ChatThinking::automatic;
  // custom: places {prompt}, the user's text, and {member} of the record; {bos} at the beginning.
  std::string prompt_template = "";
  // custom: the place {response}, and behind it what ends it: text, or {eos} at the end.
  std::string response_template = "";
  // model: of several templates the one of this name; empty: default.
  std::string entry = "";
  // model: "2026-11-25", what templates that write the date take for today; empty: today.
  std::string date = "";
  // plain: automatic: BOS as tokenizer.json says; off: none.
  config::ChatBos bos = config::ChatBos::automatic;
};

// A template of the model's own, as a tokenizer's folder holds it.
struct ModelTemplate {
  std::string text, origin;  // Jinja; the file and the name, for messages
  TokenizerConfig tokens;    // the special tokens that it can name
};

// What a record has beside texts, for a model's own template.
struct ChatExtras {
  std::string tools = {};     // ChatRecord::tools
  std::string response = {};  // ChatMessage::json of the response
};

// A mark for each id of the output's text: 1 where a {% generation %} block wrote a part of it. Equal to transformers'
// return_assistant_tokens_mask. Throws Error(data), the reason alone, where the ids do not follow the text.
std::vector<uint8_t> generated_marks(const JinjaOutput& output, const std::vector<int32_t>& ids,
                                     const TextEncoder& encoder);

// A template and the tokenizer that it is for. Copies share the tokenizer; several threads may use it at a time.
class ChatEncoder {
 public:
  // Throws Error(usage): the name automatic, which is to be resolved before, and a template whose special tokens the
  // tokenizer lacks. Error(data): a model's template that cannot be run. `model`: for the name model alone.
  ChatEncoder(TextEncoder encoder, const ChatTemplateOptions& options, const ModelTemplate& model = {});

  // Never automatic.
  config::ChatTemplateKind name() const { return options_.name; }
  // Members of a record that the prompt's template names, besides prompt and bos.
  const std::vector<std::string>& members() const { return members_; }

  // The text up to where the assistant's response begins. `values`: of members(). Throws Error(data), with only the
  // reason, for messages that the template has no place for.
  std::string prompt_text(const std::vector<ChatMessage>& messages, const std::vector<std::string>& values = {},
                          const ChatExtras& more = {}) const;
  // The response to the messages, and its end. Only a model's own template uses the messages. Throws Error(data), with
  // only the reason, if that template writes the answer elsewhere than its prompt asks for it.
  std::string response_text(const std::string& content, const std::vector<ChatMessage>& messages = {},
                            const ChatExtras& more = {}) const;
  // Their ids, with BOS and EOS where the template has them. Throws Error(data) as above.
  std::vector<int32_t> prompt_ids(const std::vector<ChatMessage>& messages, const std::vector<std::string>& values = {},
                                  const ChatExtras& more = {}) const;
  std::vector<int32_t> response_ids(const std::string& content, const std::vector<ChatMessage>& messages = {},
                                    const ChatExtras& more = {}) const;
  // A response as it is read where it was sampled: without what ends it, and without special tokens.
  std::string sampled_text(const std::vector<int32_t>& response_ids) const;

  // A whole conversation as the ids of one text. `learned` has a mark for each id: 1 if the template marks it as the
  // assistant's ({% generation %}), in every turn, as transformers' return_assistant_tokens_mask. `prompt`: ids before
  // the last turn's.
  struct Turns {
    std::vector<int32_t> ids;
    std::vector<uint8_t> learned;
    int64_t prompt = 0;
  };
  // Whether the template has such marks.
  bool marks_turns() const { return model_ && model_->marks_generation(); }
  // Throws Error(data), the reason alone, also where the answer is not marked, or where the ids do not follow the text.
  Turns turns(const std::vector<ChatMessage>& messages, const std::string& response, const ChatExtras& more = {}) const;

  // Each of these ids ends a completion; empty if the template ends one with a text (stop_text).
  const std::vector<int64_t>& stop_ids() const { return stop_ids_; }
  const std::string& stop_text() const { return stop_text_; }
  const TextEncoder& encoder() const { return encoder_; }
  // All that changes ids, for digests.
  std::string description() const;

 private:
  void set_family(bool thinks);
  void set_custom();
  void set_model(const ModelTemplate& model);
  // What the model's own template writes.
  JinjaOutput run(const std::vector<ChatMessage>& messages, bool asks, const std::string& tools) const;
  // Other templates have no place for members of messages, nor for tools.
  void refuse_extras(const std::vector<ChatMessage>& messages, const ChatExtras& more) const;
  // The special token that it writes behind an answer; -1: none is known.
  int64_t end_of_answer() const;
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
  // Of model.
  std::shared_ptr<const JinjaTemplate> model_;
  std::shared_ptr<const nlohmann::ordered_json> variables_;
  JinjaOptions limits_;
  std::string model_digest_;
  bool bos_ = false, eos_ = false;
  std::vector<int64_t> stop_ids_;
  std::string stop_text_;
};

// The tokenizer of a folder of the transformers library: tokenizer.json, with the special tokens that
// tokenizer_config.json names, where there is one. Throws Error(data) for files that are wrong.
struct TokenizerFolder {
  TextEncoder encoder;
  TokenizerConfig config;
  // What each of config.chat_templates was read from, by its name, for messages.
  std::map<std::string, std::string> template_origins;
};
TokenizerFolder open_tokenizer_folder(const std::filesystem::path& folder);
// The same with its template. Throws as above and as ChatEncoder. Error(usage) asks for a template's name if the folder
// has none, or several without one called default.
ChatEncoder open_chat_encoder(const std::filesystem::path& folder, ChatTemplateOptions options);

}  // namespace hrm::data

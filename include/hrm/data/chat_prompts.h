#pragma once
// What a model is asked with a record: the members that make the prompt, the instruction around them, the template. The
// same for training, evaluation and `hrm_train generate`. No torch here.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/data/chat_template.h"
#include "hrm/formats/chat_record.h"
#include "hrm/formats/text_template.h"

namespace hrm::data {

class ChatPrompts {
 public:
  // `encoder` must outlive this. `fields.texts` and `prompt_texts` are set here, to the members that template and
  // instruction name; such a member is read as text, not as a list of tools.
  // `instruction`: as ChatDataOptions::instruction. Throws Error(usage) for one that is not a template.
  ChatPrompts(const ChatEncoder& encoder, ChatFields fields, const std::string& instruction);

  // Of a line of JSON. Throws as parse_chat_record: a place that the record has no value for is an Error(data), too.
  ChatRecord read(std::string_view line) const;
  // For a bare text, which is the prompt. Error(data), with only the reason, if template or instruction need more
  // members.
  ChatRecord record_of(const std::string& prompt) const;

  struct Asked {
    std::vector<ChatMessage> messages;  // in front of the response, the instruction in them
    std::vector<std::string> values;    // of ChatEncoder::members()
    ChatExtras more = {};
  };
  // For ChatEncoder::prompt_ids and prompt_text.
  Asked ask(const ChatRecord& record) const;

  const ChatEncoder& encoder() const { return encoder_; }

 private:
  std::string user_text(const ChatRecord& record) const;

  const ChatEncoder& encoder_;
  ChatFields fields_;
  std::optional<TextTemplate> instruction_;
};

}  // namespace hrm::data

#pragma once
// Builds a model's prompt from a record: the members used, the instruction around them and the chat template. Training,
// evaluation and `hrm_train generate` share it.
// This header does not depend on torch.

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
  // `encoder` must outlive this object. The constructor sets `fields.texts` and `prompt_texts` to the members that the
  // template and the instruction name. Such a member is read as text, not as a list of tools. `instruction`: see
  // ChatDataOptions::instruction. Throws Error(usage) if it is not a valid template.
  ChatPrompts(const ChatEncoder& encoder, ChatFields fields, const std::string& instruction);

  // Reads one line of JSON. Throws like parse_chat_record, and Error(data) if the record lacks a member that is named.
  ChatRecord read(std::string_view line) const;
  // A record from a bare prompt. Throws Error(data), with only the reason, if the template or instruction needs other
  // members.
  ChatRecord record_of(const std::string& prompt) const;

  struct Asked {
    std::vector<ChatMessage> messages;  // the messages before the response, with the instruction applied
    std::vector<std::string> values;    // values of ChatEncoder::members()
    ChatExtras more = {};
  };
  // The arguments of ChatEncoder::prompt_ids and prompt_text.
  Asked ask(const ChatRecord& record) const;

  const ChatEncoder& encoder() const { return encoder_; }

 private:
  std::string user_text(const ChatRecord& record) const;

  const ChatEncoder& encoder_;
  ChatFields fields_;
  std::optional<TextTemplate> instruction_;
};

}  // namespace hrm::data

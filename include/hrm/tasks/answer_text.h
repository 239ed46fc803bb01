#pragma once
// What ends an answer, and its text while it is being written: whole characters alone, and an end where a stop string
// begins.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hrm/data/chat_template.h"
#include "hrm/data/text_encoder.h"

namespace hrm::tasks {

// What ends an answer by itself, wherever it is sampled.
struct AnswerEnds {
  std::vector<int64_t> ids;        // each ends it and is no part of its text
  std::vector<std::string> texts;  // likewise
};
// The template's ids and text, the tokenizer's EOS, and those of the model's own files (HfModelConfig::eos_ids), each
// once.
AnswerEnds answer_ends(const data::ChatEncoder& chat, const std::vector<int64_t>& eos_ids);

class AnswerText {
 public:
  // stops: none of them empty.
  AnswerText(const data::TextEncoder& encoder, std::vector<std::string> stops);

  // What is certain after one more id, and no part of a stop string; may be empty.
  std::string push(int32_t id);
  // The rest, when no id follows.
  std::string finish();
  // A stop string came up: the text ends in front of it, and nothing more comes.
  bool stopped() const { return stopped_; }

 private:
  std::string release(bool all);

  std::unique_ptr<data::TextStream> stream_;
  std::vector<std::string> stops_;
  std::string held_;  // may be the beginning of a stop string
  bool stopped_ = false;
};

}  // namespace hrm::tasks

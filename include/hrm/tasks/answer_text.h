#pragma once
// The text of an answer while it is being written: whole characters alone, and an end where a stop string begins.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hrm/data/text_encoder.h"

namespace hrm::tasks {

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

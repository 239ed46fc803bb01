#pragma once
// A trained model that continues text, as `hrm_train generate` asks a task for it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "hrm/data/chat_prompts.h"
#include "hrm/models/language_model.h"
#include "hrm/tasks/answer_sampler.h"
#include "hrm/tasks/trained_model.h"

namespace hrm::tasks {

struct WriterRequest {
  std::string weights = "auto";  // auto, raw, ema
  std::string chat_template;     // chat.template; empty: the model's
  std::string system;            // what is said in front of each prompt
  bool reads_text = true;        // otherwise only ids are written, and the writer may have no text
};

struct TextWriter {
  std::shared_ptr<TrainedModel> owner;  // of all below
  models::LanguageModel* model = nullptr;
  const data::TextEncoder* text = nullptr;     // null only where no text is asked for
  std::optional<data::ChatPrompts> chat = {};  // of a model with a template
  int64_t begin_id = -1;                       // stands between prompt and answer; -1: nothing does
  bool joins = false;                          // prompt, begin_id and answer are one row
  int64_t vocabulary = 0;                      // ids from here on are never written; 0: all may be
  AnswerEnds ends = {};
  bool cuda_graphs = true;
};

}  // namespace hrm::tasks

#pragma once
// Answers that a causal language model writes to prompts, with what a policy's gradient needs of them.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hrm/data/chat_template.h"
#include "hrm/nn/lora.h"
#include "hrm/tasks/answer_text.h"
#include "hrm/tasks/generation.h"

namespace hrm::tasks {

struct AnswerOptions {
  int64_t samples = 3;  // of each prompt
  int64_t max_new_tokens = 100;
  SamplingOptions sampling = {};
  uint64_t seed = 0;
  std::vector<uint64_t> keys = {};  // of each prompt, below 2^43: what randomness is keyed by; empty: 0 and on
};

struct Answers {
  int64_t samples = 0;
  std::vector<std::vector<int32_t>> ids;  // (prompts * samples): all that was chosen, with the id that ended it
  std::vector<std::string> texts;         // without special tokens and white space around
  std::vector<bool> finished;             // it ended by itself
  int64_t tokens() const;                 // of all ids
};

// Keeps buffers and CUDA graphs from call to call.
class AnswerSampler {
 public:
  // `model`, `lora` (may be null) and `chat` must outlive this. rows: sampled at the same time; positions: of the
  // longest prompt with its answer; eos_ids: ids that end a text in the model's own files, in addition to the template
  // (answer_ends).
  AnswerSampler(models::LanguageModel& model, nn::LoraSet* lora, const data::ChatEncoder& chat,
                const std::vector<int64_t>& eos_ids, int64_t rows, int64_t positions, bool cuda_graphs);

  // By the weights as they are now: an adapter is merged first (LoraSet::merge), and decoding reads one product for
  // each layer. Throws as Generator::run. Waits for the device.
  Answers sample(const std::vector<std::vector<int32_t>>& prompts, const AnswerOptions& options);

  // Of the last call: merging the adapter; reading the first batch of prompts; all that followed.
  double merge_ms() const { return merge_ms_; }
  double prefill_ms() const { return generator_.counts().prefill_ms; }
  double decode_ms() const { return generate_ms_ - prefill_ms(); }
  const GenerateCounts& counts() const { return generator_.counts(); }

 private:
  nn::LoraSet* lora_;
  const data::TextEncoder& text_;
  AnswerEnds ends_;
  Generator generator_;
  double merge_ms_ = 0, generate_ms_ = 0;
};

}  // namespace hrm::tasks

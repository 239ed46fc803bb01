#pragma once
// Learns a byte-level BPE tokenizer from text (Sennrich et al., 2016, arXiv 1508.07909): of all pairs of neighbouring
// symbols inside words the most frequent becomes a token, again and again.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/formats/tokenizer_json.h"

namespace hrm::data {

struct BpeTrainingProgress {
  const char* stage;  // "counting words": bytes of text; "merging": tokens of the vocabulary
  int64_t done, total;
};

struct BpeTrainingOptions {
  int32_t vocab_size = 0;                   // with the 256 bytes and the special tokens; a short text may give fewer
  int64_t min_frequency = 2;                // a pair that is rarer is not merged
  std::vector<std::string> special_tokens;  // get the highest ids
  std::string words = "qwen3";              // pattern that cuts words: qwen3, llama3, gpt2
  bool nfc = true;                          // with normalization form C
  int threads = 1;                          // for counting; the result does not depend on it
  std::function<void(const BpeTrainingProgress&)> progress;  // may be empty; called by the calling thread alone
};

// The tokenizer of these texts. Of equally frequent pairs the one with the lower left id, then right id, is merged
// first; ids 0 to 255 are the bytes in the order of their characters, then come merges as they were learned: the same
// as the `tokenizers` library's BpeTrainer does with the whole byte alphabet. Special tokens that are in the texts
// are text like any other. Long texts are cut into pieces of about a MiB at line ends where words end, too. Throws
// Error(usage) for options that cannot be, Error(data) for a text that is no UTF-8.
TokenizerJson train_bpe(std::span<const std::string_view> texts, const BpeTrainingOptions& options);

}  // namespace hrm::data

#pragma once
// Trains a byte-level BPE tokenizer on text (Sennrich et al., 2016, arXiv 1508.07909): the most frequent pair of
// neighbouring symbols inside words becomes a token, repeatedly.

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

// The tokenizer of these texts. Among equally frequent pairs, the one with the lower left id, then right id, is merged
// first. Ids 0 to 255 are the bytes in the order of their characters; merges follow in the order of learning. This
// equals the `tokenizers` library's BpeTrainer with the whole byte alphabet. Special tokens in the texts are ordinary
// text. Long texts are cut into pieces of about a MiB at line ends where words end, too. Throws Error(usage) for
// impossible options, Error(data) for a text that is not UTF-8.
TokenizerJson train_bpe(std::span<const std::string_view> texts, const BpeTrainingOptions& options);

}  // namespace hrm::data

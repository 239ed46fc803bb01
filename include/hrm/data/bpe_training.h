#pragma once
// Trains a byte-level BPE tokenizer on text (Sennrich et al., 2016, arXiv 1508.07909). The most frequent pair of
// adjacent symbols within words becomes a token, repeatedly.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/formats/tokenizer_json.h"

namespace hrm::data {

struct BpeTrainingProgress {
  const char* stage;  // "counting words": unit is bytes of text; "merging": unit is tokens of the vocabulary
  int64_t done, total;
};

struct BpeTrainingOptions {
  // Includes the 256 bytes and the special tokens. A short text may give fewer tokens.
  int32_t vocab_size = 0;
  int64_t min_frequency = 2;                                 // rarer pairs are not merged
  std::vector<std::string> special_tokens;                   // get the highest ids
  std::string words = "qwen3";                               // pattern that splits text into words: qwen3, llama3, gpt2
  bool nfc = true;                                           // apply Unicode normalization form C first
  int threads = 1;                                           // for counting; does not affect the result
  std::function<void(const BpeTrainingProgress&)> progress;  // may be empty; called only from the calling thread
};

// Trains a tokenizer on `texts`. Ties between equally frequent pairs go to the lower left id, then the lower right id.
// Ids 0 to 255 are the bytes, in the order of their characters; merged tokens follow in the order of merging. The
// result equals that of the `tokenizers` library's BpeTrainer with the full byte alphabet. Special tokens inside the
// texts are treated as ordinary text.
// Long texts are cut into pieces of about 1 MiB at line ends that are also word boundaries.
// Throws Error(usage) for invalid options and Error(data) for a text that is not UTF-8.
TokenizerJson train_bpe(std::span<const std::string_view> texts, const BpeTrainingOptions& options);

}  // namespace hrm::data

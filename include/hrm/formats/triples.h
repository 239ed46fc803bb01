#pragma once
// A training record of an encoder-decoder language model, as a line of JSON:
//    {"encoder_ids": [...], "decoder_input_ids": [...], "labels": [...]}
// encoder_ids may also be called input_ids, and labels targets. decoder_input_ids default to the encoder's ids.
//
// `labels[t]` is the target of `decoder_input_ids[t]`; labels are not shifted later. -100 is not learned.

#include <cstdint>
#include <string_view>

#include "hrm/base/error.h"

namespace hrm {

struct TripleLimits {
  int64_t vocab_size = 0;               // ids are 0..vocab_size-1
  uint32_t tokens = uint32_t{1} << 20;  // of one array
};

// The three arrays of a line, as views of it. They are checked, so that read_ids cannot fail.
struct Triple {
  std::string_view encoder_ids, decoder_ids, labels;  // the text between the brackets
  uint32_t encoder_tokens = 0;
  uint32_t decoder_tokens = 0;  // also the number of labels
};

// Throws Error(code), with only the reason, e.g. "id 99 is not below the vocabulary's 64". Errors are JSON of another
// form, a duplicate or unknown key, an empty array, and too many ids. Ids must be whole numbers in the vocabulary.
// Labels and decoder ids must have the same length.
Triple parse_triple(std::string_view line, const TripleLimits& limits, ExitCode code);

// Writes the first `count` numbers of an array of a Triple to `out`.
void read_ids(std::string_view array, int32_t* out, int64_t count);

}  // namespace hrm

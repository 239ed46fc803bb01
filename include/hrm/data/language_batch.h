#pragma once
// A batch of language data as a model sees it.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::data {

// B = rows, S = encoder positions, T = decoder positions.
struct LanguageBatch {
  at::Tensor encoder_ids;   // (B, S) int64, padded with pad_id; undefined when S is 0
  at::Tensor encoder_mask;  // (B, S) bool, true for ids, false for padding; undefined when S is 0
  at::Tensor decoder_ids;   // (B, T) int64, padded with pad_id
  at::Tensor labels;        // (B, T) int64: the token after decoder_ids[b, t]; kIgnoreLabel if not learned
  // For packed text; otherwise undefined. `document_ids` counts the documents of a row from 0. `position_ids` counts
  // from 0 within the part of the document that is in the row. Attention within documents means a run of equal
  // document_ids.
  // Rows of a source that is not packed have document 0 and positions 0..T-1.
  at::Tensor document_ids;     // (B, T) int32
  at::Tensor position_ids;     // (B, T) int32
  int64_t most_documents = 0;  // at most that many documents in a row; 0: not known
  int64_t valid_rows = 0;      // rows before padding; padding rows have all labels ignored
  int64_t encoder_tokens = 0;  // encoder ids without padding
  int64_t decoder_tokens = 0;  // decoder ids without padding
  int64_t label_tokens = 0;    // labels that are learned
};

// Sizes of a batch. If encoder_len is 0, there is no encoder side (text only).
struct LanguageShape {
  int64_t encoder_len = 0;  // S
  int64_t decoder_len = 0;  // T
  bool operator==(const LanguageShape&) const = default;
};

}  // namespace hrm::data

#pragma once
// A batch of language data as a model sees it.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::data {

// B = rows, S = positions of the encoder, T = of the decoder.
struct LanguageBatch {
  at::Tensor encoder_ids;   // (B, S) int64, padded with pad_id; undefined when S is 0
  at::Tensor encoder_mask;  // (B, S) bool, true where an id is; undefined when S is 0
  at::Tensor decoder_ids;   // (B, T) int64, padded with pad_id
  at::Tensor labels;        // (B, T) int64: what follows decoder_ids[b, t]; kIgnoreLabel where nothing is learned
  // For packed text (otherwise undefined): the document of the row that a position belongs to, counted from 0, and its
  // place inside that document as far as the row shows it, from 0. Attention within documents: positions with equal
  // document_ids. Rows of a source that is not packed have document 0 and positions 0..T-1.
  at::Tensor document_ids;     // (B, T) int32
  at::Tensor position_ids;     // (B, T) int32
  int64_t valid_rows = 0;      // rows before padding; padding rows have all labels ignored
  int64_t encoder_tokens = 0;  // ids of the encoder, without padding
  int64_t decoder_tokens = 0;  // ids of the decoder, without padding
  int64_t label_tokens = 0;    // labels that are learned from
};

// Sizes of a batch. encoder_len 0: there is no encoder side (only text).
struct LanguageShape {
  int64_t encoder_len = 0;  // S
  int64_t decoder_len = 0;  // T
  bool operator==(const LanguageShape&) const = default;
};

}  // namespace hrm::data

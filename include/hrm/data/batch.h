#pragma once
// A batch of puzzles as the model sees it.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::data {

// What every sample of a data set has in common (dataset.json of the official layout).
struct PuzzleMeta {
  int64_t vocab_size = 0;  // V; tokens are 0..V-1
  int64_t seq_len = 0;     // S
  int64_t num_puzzle_identifiers = 1;
  int64_t pad_id = 0;
  int64_t blank_identifier_id = 0;
  // Labels with this token become kIgnoreLabel; -1 = none.
  int64_t ignore_label_id = -1;
};

inline constexpr int64_t kIgnoreLabel = -100;

// B = rows. Integer tensors are int32, as the official loader gives them.
struct PuzzleBatch {
  at::Tensor inputs;              // (B, S) int32
  at::Tensor labels;              // (B, S) int32, kIgnoreLabel where unsupervised
  at::Tensor puzzle_identifiers;  // (B) int32
  int64_t valid_rows = 0;         // rows before padding; padding rows have all labels ignored
};

}  // namespace hrm::data

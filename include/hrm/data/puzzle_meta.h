#pragma once
// Properties of all samples of a dataset. No tensors here: the puzzle readers are fuzzed without torch.

#include <cstdint>

namespace hrm::data {

// dataset.json of the official layout.
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

}  // namespace hrm::data

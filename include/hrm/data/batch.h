#pragma once
// A batch of puzzles as the model sees it.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hrm/data/puzzle_meta.h"

namespace hrm::data {

// B = rows, S = positions. Integer tensors are int32, as in the official loader.
struct PuzzleBatch {
  at::Tensor inputs;              // (B, S) int32
  at::Tensor labels;              // (B, S) int32, kIgnoreLabel where unsupervised
  at::Tensor puzzle_identifiers;  // (B) int32
  int64_t valid_rows = 0;         // rows before padding; padding rows have all labels ignored
};

}  // namespace hrm::data

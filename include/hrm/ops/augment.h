#pragma once
// Rows of a training batch, taken from a table of puzzles and augmented, in one pass.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

enum class AugmentKind { none, sudoku, dihedral };

struct Augmentation {
  AugmentKind kind = AugmentKind::none;
  uint64_t seed = 0;
  int64_t box_rows = 0;  // of a Sudoku
  int64_t box_cols = 0;
};

// Row i of the outputs becomes row picks[i, 0] of the tables under the random symmetry of the sample picks[i, 1], drawn
// from (seed, Stream::augment, sample) as on the host: the same bits on every device. identifiers[i] = picks[i, 2].
//
// table_inputs, table_labels: (E, S) int32, tokens; Sudoku tokens are 0 (padding) and digit + 1; negative labels stay.
// picks: (N, 3) int64; rows outside 0..E-1 and tokens outside the vocabulary are not checked on a GPU. inputs, labels:
// (N, S) int32, identifiers: (N) int32, overwritten. All contiguous and on one device. On the current stream, one
// launch, no host synchronisation (with ops.backend=reference the host draws a GPU's rows and waits for it). Not
// differentiable. Throws c10::Error naming the shapes that do not fit.
void augment_rows_(const at::Tensor& inputs, const at::Tensor& labels, const at::Tensor& identifiers,
                   const at::Tensor& table_inputs, const at::Tensor& table_labels, const at::Tensor& picks,
                   const Augmentation& how);

}  // namespace hrm::ops

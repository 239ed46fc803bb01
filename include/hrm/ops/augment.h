#pragma once
// Copies rows of a puzzle table into a training batch and augments them, in one pass.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// arc: copies that were drawn beforehand; the sample is the code of a copy (ArcCopy, hrm/ops/symmetry.h).
enum class AugmentKind { none, sudoku, dihedral, arc };

struct Augmentation {
  AugmentKind kind = AugmentKind::none;
  uint64_t seed = 0;
  int64_t box_rows = 0;  // of a Sudoku
  int64_t box_cols = 0;
};

// Row i of the outputs becomes row picks[i, 0] of the tables under the random symmetry of sample picks[i, 1]. The
// symmetry is drawn from (seed, Stream::augment, sample), with the same bits on host and device. identifiers[i] =
// picks[i, 2].
//
//   table_inputs, table_labels: (E, S) int32 tokens. Sudoku tokens are 0 (padding) and digit + 1. Negative labels are
//     kept. Of ARC the original grids, at the first cell; around a copy inputs are 0 and labels kArcIgnored.
//   picks: (N, 3) int64. Rows outside 0..E-1 and tokens outside the vocabulary are not checked on a GPU.
//   inputs, labels: (N, S) int32, overwritten. identifiers: (N) int32, overwritten.
//
// All tensors are contiguous and on one device. One launch on the current stream, without host synchronisation. With
// ops.backend=reference, the host computes a GPU's rows and waits for the device. Not differentiable. Throws c10::Error
// that names the shapes that do not fit.
void augment_rows_(const at::Tensor& inputs, const at::Tensor& labels, const at::Tensor& identifiers,
                   const at::Tensor& table_inputs, const at::Tensor& table_labels, const at::Tensor& picks,
                   const Augmentation& how);

}  // namespace hrm::ops

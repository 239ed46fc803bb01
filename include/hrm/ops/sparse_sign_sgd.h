#pragma once
// Sign SGD on the few rows of a table that a batch touches (puzzle embeddings of HRM and TRM).

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// For every distinct id u in `ids`:
//   w_u = w_u (1 - lr wd) - lr sign(sum of the rows of row_grads with that id),  sign(0) = 0
// Other rows keep every bit, without decay.
//
// weights: (E, D) float32, updated in place. ids: (N) int32 or int64, N >= 1, each in 0..E-1 (unchecked on a GPU).
// row_grads: (N, D) float32. lr, skip: 0-dim float32. All on one device. A non-zero (or NaN) skip leaves the table
// unchanged. Deterministic: the order of the sum is fixed. One launch on the current stream, without host
// synchronisation; can be captured. Not differentiable. Throws c10::Error that names the shapes that do not fit.
void sparse_sign_sgd_(at::Tensor& weights, const at::Tensor& ids, const at::Tensor& row_grads, const at::Tensor& lr,
                      double weight_decay, const at::Tensor& skip);

}  // namespace hrm::ops

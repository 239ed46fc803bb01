#pragma once
// Semantic diversity of groups of embeddings: how far apart the vectors of a group point.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// Statistics of the n valid vectors of each group. cos(a, b) = a.b / (max(|a|, 1e-8) max(|b|, 1e-8)), so a zero vector
// has cos 0 with everything. float32 (float64 for float64 embeddings), never negative. The advantage of completion i is
// D - D_-i = 2/n (r_i - D_-i).
struct Diversity {
  at::Tensor totals;  // (G) D: mean of 1 - cos over the group's pairs; 0 if n < 2
  at::Tensor rows;    // (G, N) r_i: mean of 1 - cos between vector i and the others; 0 for padding and if n < 2
  at::Tensor loo;     // (G, N) D_-i: D of the group without vector i; 0 for padding and if n < 3
};

//   embeddings: (G, N, d), d >= 1, float32, bfloat16 or float16 (float64 for tests), any strides.
//   counts: (G) int32 or int64 on the same device: n, clamped to 0..N. Undefined: n = N everywhere.
//
// Vectors after the first n are ignored, and their results are zero. A non-finite value gives NaN for its group. On a
// GPU, so does a vector whose squares overflow float32.
//
// On a GPU, one launch on the current stream, which reads the counts on the device and can be captured. D is a mean of
// squared distances, so nearly equal vectors lose nothing by cancellation. Deterministic. Not differentiable. On the
// CPU, and for vectors that do not fit into a block's shared memory, uses the closed form in plain ATen. With
// ops.backend=reference, uses the matrix of all pairs. Throws c10::Error that names the shapes.
Diversity semantic_diversity(const at::Tensor& embeddings, const at::Tensor& counts = {});

}  // namespace hrm::ops

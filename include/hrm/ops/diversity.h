#pragma once
// Semantic diversity of groups of embeddings: how far apart the vectors of a group point.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// Statistics of the n valid vectors of each group, with cos(a, b) = a.b / (max(|a|, 1e-8) max(|b|, 1e-8)), so a zero
// vector has cos 0 with everything. float32 (float64 for float64 embeddings), at least 0. A policy's advantage of
// answer i is D - D_-i = 2/n (r_i - D_-i).
struct Diversity {
  at::Tensor totals;  // (G) D: mean of 1 - cos over the group's pairs; 0 where n < 2
  at::Tensor rows;    // (G, N) r_i: mean of 1 - cos between vector i and the others; 0 for padding and where n < 2
  at::Tensor loo;     // (G, N) D_-i: D of the group without vector i; 0 for padding and where n < 3
};

// embeddings: (G, N, d), d at least 1, float32, bfloat16 or float16 (float64 for tests), any strides. counts: (G) int32
// or int64 on their device: n, clamped to 0..N; undefined: n = N everywhere. Vectors after the first n have no effect,
// and their results are zero. A group with a value that is not finite gives NaN; on a GPU also one with a vector whose
// squares overflow float32.
//
// On a GPU one launch on the current stream, which reads the counts there and can be captured. Nearly equal vectors
// lose nothing by cancellation: D is a mean of squared distances. Deterministic. Not differentiable. On a CPU, and for
// vectors that do not fit into a block's shared memory, the closed form in plain ATen; with ops.backend=reference the
// matrix of all pairs. Throws c10::Error that names the shapes.
Diversity semantic_diversity(const at::Tensor& embeddings, const at::Tensor& counts = {});

}  // namespace hrm::ops

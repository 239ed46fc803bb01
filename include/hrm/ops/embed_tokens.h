#pragma once
// Token embeddings of a large vocabulary. The gradient is added to the table's gradient in place, without a dense
// temporary.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// x (..., D) = table[ids], rounded to `dtype`. ids: (...) int32 or int64 in 0..V-1 (unchecked on a GPU). table: (V, D)
// float32 (float64 for tests), an autograd leaf. Its gradient is not returned to autograd but added to table.grad()
// (hrm/ops/linear.h: gradient_buffer). Each entry's rows are summed in float32 in a fixed order. Deterministic. Runs on
// the current stream; can be captured. Throws c10::Error that names the shapes.
at::Tensor embed_tokens(const at::Tensor& ids, const at::Tensor& table, at::ScalarType dtype);

// The same, of a copy of the table in another dtype: x = copy[ids], in the dtype of `copy` (V, D). The gradient goes to
// table.grad(); of `table` neither values nor storage are read.
at::Tensor embed_tokens(const at::Tensor& ids, const at::Tensor& table, const at::Tensor& copy);

// The backward pass: grad_table[ids[i]] += grad_x[i]. grad_table: (V, D) float32 (float64 for float64), contiguous.
// grad_x: (..., D) of any floating-point dtype. ids: (...).
void embed_tokens_backward_(const at::Tensor& grad_table, const at::Tensor& grad_x, const at::Tensor& ids);

}  // namespace hrm::ops

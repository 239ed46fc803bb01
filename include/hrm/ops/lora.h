#pragma once
// The products of low-rank adapters beside a linear layer that stands for several projections (Hu et al., "LoRA",
// arXiv 2106.09685): y_i = x W_i^T + u_i B_i^T with u = scale * x A^T, where projection i has some neighbouring columns
// of y, `rank` columns of u and some rows of B. A layer's projections are done at once.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace hrm::ops {

// Projection i: columns out .. out + rows of y, rows first .. first + rows of B, columns i * rank .. (i + 1) * rank of
// u.
struct LoraSlice {
  int64_t out = 0, first = 0, rows = 0;
};

// y_i += u_i B_i^T of each projection, in place; summed in float32 (float64) and rounded once. Columns of y that no
// slice names stay.
//
// y: (N, out), contiguous. u: (N, slices * rank). B: (rows of all slices, rank). One floating-point dtype and device.
// Without gradient; deterministic; on the current stream; can be captured. Throws c10::Error that names the shapes.
void lora_add_(const at::Tensor& y, const at::Tensor& u, const at::Tensor& B, const std::vector<LoraSlice>& slices);

// The backward pass of that with u = scale * v: returns the gradient of v, scale * grad_y_i B_i side by side, (N,
// slices * rank), and adds u's part of B's gradient, grad_y_i^T u_i, to grad_B where that is defined.
//
// grad_y: (N, out). u, B as above. grad_B: (rows of all slices, rank), contiguous, float32 (float64 beside float64, or
// the others' dtype). On a GPU grad_y is read once for both. Otherwise as above.
at::Tensor lora_gradients(const at::Tensor& grad_y, const at::Tensor& u, const at::Tensor& B, const at::Tensor& grad_B,
                          const std::vector<LoraSlice>& slices, double scale);

}  // namespace hrm::ops

#pragma once
// The products of low-rank adapters on a linear layer that fuses several projections (Hu et al., "LoRA", arXiv
// 2106.09685): y_i = x W_i^T + u_i B_i^T with u = scale * x A^T. Projection i has adjacent columns of y, `rank` columns
// of u and some rows of B. All projections of a layer are computed at once.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace hrm::ops {

// Projection i: columns out .. out + rows of y, rows first .. first + rows of B, columns i * rank .. (i + 1) * rank of
// u.
struct LoraSlice {
  int64_t out = 0, first = 0, rows = 0;
};

// y_i += u_i B_i^T for each projection, in place, summed in float32 (float64) and rounded once. Columns of y outside
// all slices are unchanged.
//
// y: (N, out), contiguous. u: (N, slices * rank). B: (rows of all slices, rank). One floating-point dtype and device.
// No gradient. Deterministic. Runs on the current stream; can be captured. Throws c10::Error that names the shapes.
void lora_add_(const at::Tensor& y, const at::Tensor& u, const at::Tensor& B, const std::vector<LoraSlice>& slices);

// The backward pass, where u = scale * v. Returns the gradient of v: scale * grad_y_i B_i side by side,
// (N, slices * rank). If grad_B is defined, adds B's gradient through u, grad_y_i^T u_i, to it.
//
// grad_y: (N, out). u and B: as above. grad_B: (rows of all slices, rank), contiguous, float32 (float64 with float64),
// or the dtype of the others. On a GPU, grad_y is read once for both gradients. Otherwise like lora_add_.
at::Tensor lora_gradients(const at::Tensor& grad_y, const at::Tensor& u, const at::Tensor& B, const at::Tensor& grad_B,
                          const std::vector<LoraSlice>& slices, double scale);

// A layer whose adapter is merged into its weight. Here projection i has rows out .. out + rows of the weight and rows
// i * rank .. (i + 1) * rank of A.
struct LoraLayer {
  at::Tensor merged, weight;  // (out, in), contiguous; the same tensor, or without overlap
  at::Tensor A, B;            // (slices * rank, in), (rows of all slices, rank)
  std::vector<LoraSlice> slices;
};

// merged_i = weight_i + scale * B_i A_i for each projection of all layers; merged = weight in the other rows. B_i A_i
// is summed in float32 (float64), and the result is rounded once. The slices of a layer are adjacent in the weight's
// rows.
//
// All layers share one rank, floating-point dtype and device. Up to rank 64, the layers share few launches, which read
// and write each weight once. No gradient. Deterministic. Runs on the current stream; can be captured. Throws
// c10::Error that names the shapes.
void lora_merge_(const std::vector<LoraLayer>& layers, double scale);

}  // namespace hrm::ops

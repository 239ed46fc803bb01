#pragma once
// The input of a puzzle model: puzzle embedding and token embeddings, scaled, in one pass.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace hrm::ops {

// x (B, P + S, D) = scale * [puzzle_rows, zero-padded to P rows of D | table[inputs]].
//
// inputs: (B, S) int32 or int64, each in 0..V-1 (unchecked on a GPU). table: (V, D) float32 (float64 for tests).
// puzzle_rows: (B, W) like table, W <= P * D; undefined if P = 0. As in plain ATen, everything is rounded to `dtype`,
// then multiplied in float32 and rounded again. Differentiable once, in table and puzzle_rows. Deterministic. Runs on
// the current stream; can be captured. Throws c10::Error that names the shapes.
at::Tensor embed(const at::Tensor& inputs, const at::Tensor& table, const std::optional<at::Tensor>& puzzle_rows,
                 int64_t prefix, double scale, at::ScalarType dtype);

// Where the GPU kernel does not run (its sums must fit into shared memory), the table's gradient is a product with the
// one-hot ids up to this many entries. Above, it is ATen's dense embedding gradient.
inline constexpr int64_t kOneHotEntries = 256;

// For grad_x (B, P + S, D) of any floating-point dtype, returns the gradients of table, (entries, D), and of
// puzzle_rows, (B, puzzle_width), undefined if puzzle_width is 0. Both are float32 (float64 for float64). An entry's
// gradient is summed in that type, in a fixed order.
std::tuple<at::Tensor, at::Tensor> embed_backward(const at::Tensor& grad_x, const at::Tensor& inputs, int64_t entries,
                                                  int64_t puzzle_width, double scale);

}  // namespace hrm::ops

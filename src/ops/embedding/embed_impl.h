#pragma once
// What the files of embed share: the input checks and the plain ATen reference.

#include "hrm/ops/embed.h"

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_embed(const at::Tensor& inputs, const at::Tensor& table, const std::optional<at::Tensor>& puzzle_rows,
                 int64_t prefix);
void check_embed_backward(const at::Tensor& grad_x, const at::Tensor& inputs, int64_t entries, int64_t puzzle_width);

namespace reference {

at::Tensor embed(const at::Tensor& inputs, const at::Tensor& table, const std::optional<at::Tensor>& puzzle_rows,
                 int64_t prefix, double scale, at::ScalarType dtype);
std::tuple<at::Tensor, at::Tensor> embed_backward(const at::Tensor& grad_x, const at::Tensor& inputs, int64_t entries,
                                                  int64_t puzzle_width, double scale);

}  // namespace reference
}  // namespace hrm::ops

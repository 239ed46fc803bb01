#pragma once
// What the files of embed_tokens share: the input checks and the plain ATen reference.

#include "hrm/ops/embed_tokens.h"

namespace hrm::ops {

// Throws c10::Error with the op's name and the shapes.
void check_embed_tokens_backward(const at::Tensor& grad_table, const at::Tensor& grad_x, const at::Tensor& ids);

namespace reference {

void embed_tokens_backward_(const at::Tensor& grad_table, const at::Tensor& grad_x, const at::Tensor& ids);

}  // namespace reference
}  // namespace hrm::ops

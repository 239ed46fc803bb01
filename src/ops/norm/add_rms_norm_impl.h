#pragma once
// Shared by the implementations of hrm::add_pieces.

#include <ATen/core/Tensor.h>

#include "ops/common/optional_tensor.h"

namespace hrm::ops {

void check_add_pieces(const OptionalTensor& residual, const at::Tensor& pieces);
void check_next_norm(const at::Tensor& sums, const at::Tensor& next_norm);

namespace reference {

// Plain ATen.
at::Tensor add_pieces(const OptionalTensor& residual, const at::Tensor& pieces);

}  // namespace reference

}  // namespace hrm::ops

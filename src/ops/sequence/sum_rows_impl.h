#pragma once
// What the files of sum_rows share: the input checks and the plain ATen reference.

#include "hrm/ops/sum_rows.h"

namespace hrm::ops {

// Throws c10::Error with the op's name and the shapes.
void check_sum_rows(const at::Tensor& x, const RowMap& map, const at::Tensor& base);

namespace reference {

at::Tensor sum_rows(const at::Tensor& x, const RowMap& map, const at::Tensor& base);

}  // namespace reference
}  // namespace hrm::ops

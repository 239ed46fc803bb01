#pragma once
// What the files of inject share: the input check and the plain ATen reference.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// Throws c10::Error with the op's name and the shapes.
void check_inject(const at::Tensor& a, const at::Tensor& b);

namespace reference {

at::Tensor inject(const at::Tensor& a, const at::Tensor& b);

}  // namespace reference
}  // namespace hrm::ops

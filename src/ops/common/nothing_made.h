#pragma once
// Results that not every kernel of an op makes.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// What an op returns in place of such a result: always the same empty tensor.
const at::Tensor& nothing_made();
// The result, or undefined.
inline at::Tensor if_made(const at::Tensor& result) {
  return result.numel() > 0 ? result : at::Tensor();
}

}  // namespace hrm::ops

#pragma once
// Checks of inject that hold on every device.

#include "hrm/ops/inject.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

// Value and gradients have the bits of plain ATen.
inline void expect_plain_sum(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  const at::Tensor leaf_a = a.detach().requires_grad_(), leaf_b = b.detach().requires_grad_();
  const at::Tensor sum = inject(leaf_a, leaf_b);
  EXPECT_TRUE(sum.is_contiguous()) << what;
  expect_same_bits(sum.detach(), a + b, what);
  const at::Tensor grad = normal(a.sizes(), 3, a.scalar_type(), a.device());
  const auto grads = torch::autograd::grad({sum}, {leaf_a, leaf_b}, {grad});
  expect_same_bits(grads[0], grad, what + ", gradient of a");
  expect_same_bits(grads[1], grad, what + ", gradient of b");
}

// Sizes of less than a pack of 16 bytes, and around a block's share.
inline std::vector<int64_t> sum_sizes() {
  return {1, 3, 8, 1023, 1024, 8191, 8192, 8193, 3 * 8192 + 5};
}

}  // namespace hrm::ops::testing

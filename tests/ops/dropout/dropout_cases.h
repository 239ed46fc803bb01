#pragma once
// Checks of dropout that hold on every device.

#include "hrm/base/philox.h"
#include "hrm/ops/dropout.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

// 0 or 1 / (1 - p) by the draws, one after the other.
inline at::Tensor dropout_factors(at::IntArrayRef sizes, int64_t step, double p, int64_t seed) {
  const at::Tensor factors = at::empty(sizes, at::kFloat);
  CounterRng rng(static_cast<uint64_t>(seed), Stream::dropout, static_cast<uint64_t>(step));
  for (int64_t i = 0; i < factors.numel(); ++i) {
    factors.data_ptr<float>()[i] = rng.next() < p * 0x1.0p32 ? 0.0f : static_cast<float>(1 / (1 - p));
  }
  return factors;
}

inline void expect_good_dropout(at::Device device) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::vector<int64_t>& sizes :
         std::vector<std::vector<int64_t>>{{7, 13}, {64, 96}, {1}, {0, 8}, {3, 8}, {2047}}) {
      const std::string what = cat(dtype, " ", at::IntArrayRef(sizes));
      const at::Tensor x = normal(sizes, 3, dtype, device).requires_grad_();
      const at::Tensor step = at::full({}, 41, at::device(device).dtype(at::kLong));
      const at::Tensor factors = dropout_factors(sizes, 41, 0.3, 9).to(device);
      const at::Tensor y = dropout(x, step, 0.3, 9);
      const auto kept = [&](const at::Tensor& t) { return t.detach().to(at::kFloat) * factors; };
      expect_same_bits(y, kept(x).to(dtype), what);
      const at::Tensor grad = normal(sizes, 4, dtype, device);
      expect_same_bits(torch::autograd::grad({y}, {x}, {grad})[0], kept(grad).to(dtype), what + ", gradient");
      const at::Tensor sum = normal(sizes, 5, dtype, device), before = sum.clone();
      dropout_add_(sum, grad, step, 0.3, 9);
      expect_same_bits(sum, (before.to(at::kFloat) + kept(grad)).to(dtype), what + ", added");
      expect_same_bits(dropout(x, step, 0, 9).detach(), x.detach(), what + ", p 0");
    }
  }
  const at::Tensor x = at::ones({100000}, at::device(device)), step = at::zeros({}, x.options().dtype(at::kLong));
  const at::Tensor y = dropout(x, step, 0.1, 1);
  EXPECT_NEAR(y.eq(0).to(at::kFloat).mean().item<float>(), 0.1, 0.005);
  EXPECT_NEAR(y.mean().item<float>(), 1, 0.005);
  for (const at::Tensor& other : {dropout(x, step + 1, 0.1, 1), dropout(x, step, 0.1, 2)}) {
    EXPECT_NEAR(y.eq(0).logical_and(other.eq(0)).to(at::kFloat).mean().item<float>(), 0.01, 0.002);
  }
  const at::Tensor rows = normal({12, 10}, 6, at::kFloat, device).t();
  expect_same_bits(dropout(rows, step, 0.5, 1), dropout(rows.contiguous(), step, 0.5, 1), "not contiguous");
}

}  // namespace hrm::ops::testing

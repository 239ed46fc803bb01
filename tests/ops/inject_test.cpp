#include "hrm/ops/inject.h"

#include "ops/inject_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Inject, BitsOfPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const int64_t size : sum_sizes()) {
      expect_plain_sum(normal({size}, 1, dtype), normal({size}, 2, dtype), cat(dtype, " ", size));
    }
    expect_plain_sum(normal({4, 6, 3}, 1, dtype).transpose(0, 2), normal({3, 6, 4}, 2, dtype), cat(dtype, " strided"));
    expect_plain_sum(normal({1, 6}, 1, dtype).expand({3, 6}), normal({3, 6}, 2, dtype), cat(dtype, " expanded"));
  }
}

TEST(Inject, OneOfTheTwoNeedsAGradient) {
  const at::Tensor a = normal({2, 4}, 1, at::kFloat), b = normal({2, 4}, 2, at::kFloat).requires_grad_();
  const at::Tensor sum = inject(a, b);
  EXPECT_TRUE(sum.requires_grad());
  EXPECT_TRUE(torch::autograd::grad({sum.sum()}, {b})[0].eq(1).all().item<bool>());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(inject(a, b).requires_grad());
}

TEST(Inject, BadInputIsNamed) {
  const at::Tensor a = at::zeros({2, 3});
  expect_message(error_of([&] { inject(a, at::zeros({3})); }), {"hrm::inject", "[2, 3]", "[3]"});
  expect_message(error_of([&] { inject(a, a.to(at::kBFloat16)); }), {"hrm::inject", "Float", "BFloat16"});
  expect_message(error_of([&] { inject(a.to(at::kLong), a.to(at::kLong)); }), {"hrm::inject", "Long"});
}

}  // namespace
}  // namespace hrm::ops

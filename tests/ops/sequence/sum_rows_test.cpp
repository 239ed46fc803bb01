#include "ops/sequence/sum_rows_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(SumRows, AsGoodAsADenseMatrix) {
  expect_good_sum_rows(at::kCPU);
}

TEST(SumRows, WhatIsNotNamedIsLeftOut) {
  at::Tensor x = at::ones({3, 2});
  x[1].fill_(std::numeric_limits<float>::quiet_NaN());
  const RowMap map{at::tensor({2, -1, 0, 0}, at::kInt).view({4, 1}),
                   at::tensor({2, 3, -1, -1, 0, -1}, at::kInt).view({3, 2})};
  EXPECT_TRUE(at::equal(sum_rows(x, map), at::tensor({1.0F, 0.0F, 1.0F, 1.0F}).unsqueeze(1).expand({4, 2})));
  EXPECT_TRUE(at::equal(sum_rows(at::ones({4, 2}), map.reversed()),
                        at::tensor({2.0F, 0.0F, 1.0F}).unsqueeze(1).expand({3, 2})));
}

TEST(SumRows, HasASecondDerivative) {
  const RowMap tables = random_row_map(4, 6, 2, 3), lists = as_lists(tables);
  const RowMap map{.rows = tables.rows, .back = lists.back, .back_begin = lists.back_begin};
  const at::Tensor x = normal({4, 3}, 1, at::kDouble).requires_grad_();
  const at::Tensor grad = torch::autograd::grad({sum_rows(x, map).pow(3).sum()}, {x}, {}, true, true)[0];
  grad.sum().backward();
  const at::Tensor y = sum_rows(x.detach(), map), all = sum_rows(at::ones({4, 3}, at::kDouble), map);
  EXPECT_TRUE(at::allclose(x.grad(), sum_rows(6 * y * all, map.reversed())));
}

TEST(SumRows, BadInputIsNamed) {
  const at::Tensor x = at::zeros({3, 4}), rows = at::zeros({2, 1}, at::kInt), back = at::zeros({3, 1}, at::kInt);
  const auto message = [](const at::Tensor& of, const RowMap& map) { return error_of([&] { sum_rows(of, map); }); };
  expect_message(message(x.view({-1}), {rows, back}), {"hrm::sum_rows", "[12]"});
  expect_message(message(x, {rows.to(at::kLong), back}), {"hrm::sum_rows", "Long"});
  expect_message(error_of([&] { sum_rows(x, {rows, back}, at::zeros({3, 4})); }), {"hrm::sum_rows: base", "[3, 4]"});
  expect_message(message(x, {rows, rows}), {"hrm::sum_rows", "[3, 4]", "[2, 1]"});
  const at::Tensor list = at::zeros({5}, at::kInt), begin = at::zeros({4}, at::kInt);
  expect_message(message(x, {.rows = rows, .back = list, .back_begin = at::zeros({3}, at::kInt)}),
                 {"back_begin (M + 1)", "[5] Int by [3] Int"});
  expect_message(message(x, {.rows = list, .back = back, .rows_begin = begin.to(at::kLong)}), {"[4] Long"});
}

}  // namespace
}  // namespace hrm::ops

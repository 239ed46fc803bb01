#include "ops/qkv_heads_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(QkvHeads, AsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const QkvCase& c : qkv_cases()) expect_good_qkv_heads(c, dtype, at::kCPU);
  }
}

TEST(QkvHeads, Float64) {
  const QkvCase c{.sizes = {3, 1, 8}, .norm = true};
  const QkvInputs in = QkvInputs(c, at::kFloat, at::kCPU).wide();
  const auto split = [](const at::Tensor& qkv, const QkvSizes& sizes, const QkvHeadOptions& options) {
    return qkv_heads_(qkv.clone(), sizes, options);
  };
  const QkvResult ours = run_qkv_heads(split, in, c.sizes), want = run_qkv_heads(plain_qkv_heads, in, c.sizes);
  EXPECT_LE(largest_difference(ours.heads.q, want.heads.q), 1e-13);
  for (size_t i = 0; i < 3; ++i) EXPECT_LE(largest_difference(ours.grads[i], want.grads[i]), 1e-12) << i;
}

TEST(QkvHeads, BadInputIsNamed) {
  const at::Tensor qkv = at::zeros({2, 3, 24}), table = at::zeros({3, 2}), weight = at::zeros({4});
  const QkvSizes sizes{2, 2, 4};
  const auto message = [&](const at::Tensor& rows, const QkvSizes& s, const QkvHeadOptions& o) {
    return error_of([&] { qkv_heads_(rows, s, o); });
  };
  EXPECT_EQ(message(qkv.clone(), sizes, {table, table, weight, weight}), "");
  expect_message(message(qkv, {2, 1, 4}, {table, table}), {"hrm::qkv_heads", "[2, 3, 24]"});
  expect_message(message(at::zeros({2, 24, 3}).transpose(1, 2), sizes, {table, table}),
                 {"hrm::qkv_heads", "contiguous"});
  expect_message(message(qkv, sizes, {at::zeros({2, 2}), at::zeros({2, 2})}), {"hrm::qkv_heads", "[2, 2]"});
  expect_message(message(qkv, sizes, {table, {}}), {"hrm::qkv_heads", "pairs"});
  expect_message(message(qkv, sizes, {{}, {}, weight, at::zeros({3})}), {"hrm::qkv_heads", "[3]"});
  const at::Tensor grad = at::zeros({2, 3, 2, 4});
  expect_message(error_of([&] {
                   qkv_heads_backward(grad, grad, grad.narrow(1, 0, 2), {}, {table, table});
                 }),
                 {"hrm::qkv_heads_backward", "[2, 3, 2, 4]", "[2, 2, 2, 4]"});
  expect_message(error_of([&] {
                   qkv_heads_backward(grad, grad, grad, {}, {{}, {}, weight, weight});
                 }),
                 {"hrm::qkv_heads_backward", "qkv"});
}

}  // namespace
}  // namespace hrm::ops

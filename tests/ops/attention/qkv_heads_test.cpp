#include "ops/attention/qkv_heads_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(QkvHeads, AsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const QkvCase& c : qkv_cases()) expect_good_qkv_heads(c, dtype, at::kCPU);
  }
}

TEST(QkvHeads, OfAProjection) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const QkvCase& c : qkv_cases()) expect_good_qkv_projection(c, 24, dtype, at::kCPU);
  }
}

TEST(QkvHeads, OfAProjectionInFloat64) {
  const at::Tensor x = normal({2, 3, 5}, 1, at::kDouble).requires_grad_(), master = normal({20, 5}, 2, at::kDouble),
                   cos = normal({3, 2}, 3, at::kFloat), sin = normal({3, 2}, 4, at::kFloat);
  const auto loss = [&](const at::Tensor& rows, const at::Tensor& weight) {
    const QkvHeads heads = qkv_heads_of(rows, weight, weight, {3, 1, 4}, {cos, sin});
    return (heads.q.sin().sum() + heads.k.cos().sum() + heads.v.square().sum());
  };
  const at::Tensor leaf = master.clone().requires_grad_();
  loss(x, leaf).backward();
  const at::NoGradGuard no_grad;
  constexpr double kStep = 1e-5;
  const auto expect_slopes = [&](const at::Tensor& at, const at::Tensor& grad, const auto& value) {
    for (int64_t i = 0; i < at.numel(); ++i) {
      const auto moved = [&](double by) {
        const at::Tensor there = at.detach().clone();
        there.view({-1})[i] += by;
        return value(there).template item<double>();
      };
      const double slope = (moved(kStep) - moved(-kStep)) / (2 * kStep);
      EXPECT_NEAR(grad.reshape({-1})[i].item<double>(), slope, 1e-7) << i;
    }
  };
  expect_slopes(x, x.grad(), [&](const at::Tensor& rows) { return loss(rows, master); });
  expect_slopes(master, leaf.grad(), [&](const at::Tensor& weight) { return loss(x, weight); });
}

TEST(QkvHeads, BadProjectionIsNamed) {
  const at::Tensor x = at::zeros({2, 3, 5}), weight = at::zeros({24, 5}), table = at::zeros({3, 2});
  const QkvSizes sizes{2, 2, 4};
  const auto message = [&](const at::Tensor& rows, const at::Tensor& w, const at::Tensor& master,
                           const QkvHeadOptions& o) {
    return error_of([&] { qkv_heads_of(rows, w, master, sizes, o); });
  };
  EXPECT_EQ(message(x, weight, weight, {table, table}), "");
  expect_message(message(x, at::zeros({20, 5}), at::zeros({20, 5}), {table, table}),
                 {"hrm::qkv_heads_product", "[2, 3, 5]", "[20, 5]"});
  expect_message(message(x, weight.to(at::kHalf), weight, {table, table}), {"hrm::qkv_heads_product", "Half"});
  expect_message(message(x, weight, at::zeros({24, 6}), {table, table}), {"hrm::qkv_heads_of", "[24, 6]", "[24, 5]"});
  expect_message(message(x, weight, weight, {at::zeros({2, 2}), at::zeros({2, 2})}), {"hrm::qkv_heads", "[2, 2]"});
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

TEST(QkvHeads, FrozenNorms) {
  const QkvCase c{.sizes = {3, 1, 8}, .norm = true};
  const QkvInputs in(c, at::kFloat, at::kCPU);
  const auto grad_of_rows = [&](bool trained) {
    const at::Tensor qkv = in.qkv.detach().clone().requires_grad_(),
                     q_weight = in.q_weight.detach().clone().requires_grad_(trained),
                     k_weight = in.k_weight.detach().clone().requires_grad_(trained);
    const QkvHeads heads = qkv_heads_(qkv, c.sizes, {in.cos, in.sin, q_weight, k_weight, 1e-4});
    (heads.q.square().sum() + heads.k.square().sum() + heads.v.square().sum()).backward();
    EXPECT_EQ(q_weight.grad().defined() && k_weight.grad().defined(), trained);
    return qkv.grad();
  };
  expect_same_bits(grad_of_rows(false), grad_of_rows(true));
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

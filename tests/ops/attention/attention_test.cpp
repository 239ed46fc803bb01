#include "hrm/ops/attention.h"

#include "hrm/ops/linear.h"
#include "ops/attention/attention_cases.h"
#include "ops/attention/attention_impl.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Attention, AsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t length : {1, 7, 16, 82, 129}) {
      for (const bool rotated : {false, true}) {
        expect_good_attention(attention_case(3, length, 2, 16, rotated, dtype),
                              cat(dtype, " L ", length, " rotated ", rotated));
      }
    }
  }
  expect_good_attention(attention_case(1, 9, 1, 2, true, at::kFloat), "one pair");
  expect_good_attention(attention_case(2, 9, 3, 5, false, at::kFloat), "odd head_dim");
}

TEST(Attention, LargeScores) {
  // Scores of several hundred: exp() of them overflows, their differences do not.
  expect_good_attention(attention_case(2, 20, 2, 16, false, at::kFloat, at::kCPU, 16), "large scores");
}

TEST(Attention, FiniteDifferencesInFloat64) {
  const AttentionCase c = attention_case(2, 3, 2, 4, true, at::kDouble);
  const at::Tensor grad_out = grad_for(c);
  const at::Tensor by_autograd = run_ours(c, grad_out).grad.reshape(-1);
  const auto [out, lse] = attention_forward(c.qkv, c.heads, c.cos, c.sin);
  const at::Tensor by_parts = attention_backward(grad_out, c.qkv, out, lse, c.heads, c.cos, c.sin).reshape(-1);
  constexpr double kStep = 1e-6;
  for (int64_t i = 0; i < c.qkv.numel(); ++i) {
    const auto loss = [&](double move) {
      at::Tensor moved = c.qkv.clone();
      moved.view(-1)[i] += move;
      return (attention(moved, c.heads, c.cos, c.sin) * grad_out).sum().item<double>();
    };
    // Central differences: truncation kStep^2, rounding 1e-16 / kStep.
    const double slope = (loss(kStep) - loss(-kStep)) / (2 * kStep);
    EXPECT_NEAR(by_autograd[i].item<double>(), slope, 1e-8) << i;
    EXPECT_NEAR(by_parts[i].item<double>(), slope, 1e-8) << i;
  }
}

// Every number of keys in the last vector, every number of queries at the end; more values than a vector.
TEST(Attention, WithoutGradient) {
  for (int64_t length = 1; length <= 36; ++length) {
    expect_good_attention(attention_case(2, length, 2, length % 2 == 0 ? 16 : 40, true, at::kFloat), cat("L ", length));
  }
  AttentionCase c = attention_case(2, 21, 2, 16, true, at::kFloat);
  const at::Tensor before = attention(c.qkv, c.heads, c.cos, c.sin);
  c.qkv[1].narrow(1, 16, 16).fill_(NAN);  // the queries of one head of one sequence
  const at::Tensor after = attention(c.qkv, c.heads, c.cos, c.sin);
  EXPECT_TRUE(at::isnan(after[1].narrow(1, 16, 16)).all().item<bool>());
  expect_same_bits(after[0], before[0], "the other sequence");
  expect_same_bits(after[1].narrow(1, 0, 16).contiguous(), before[1].narrow(1, 0, 16).contiguous(), "the other head");
}

TEST(Attention, NonContiguousInputs) {
  AttentionCase c = attention_case(2, 6, 2, 8, true, at::kFloat);
  const at::Tensor wide = normal({6, 2, 96}, 1, at::kFloat);
  c.qkv = wide.slice(2, 0, 96, 2).transpose(0, 1);
  ASSERT_FALSE(c.qkv.is_contiguous());
  expect_good_attention(c, "strided");
}

// In place means: the result is the same, and no other memory is touched.
TEST(Attention, MayOverwriteItsInput) {
  for (const bool rotated : {false, true}) {
    const AttentionCase c = attention_case(2, 6, 2, 8, rotated, at::kFloat);
    const at::Tensor grad_out = grad_for(c);
    const AttentionResult expected = run_ours(c, grad_out);
    const AttentionResult in_place = run_attention(
        [&](const at::Tensor& qkv) { return attention_(qkv * 1, c.heads, c.cos, c.sin); }, c.qkv, grad_out);
    expect_same_bits(in_place.out, expected.out);
    expect_same_bits(in_place.grad, expected.grad);
    expect_same_bits(run_ours(c, grad_out).out, expected.out, "the input is as it was");
    const at::Tensor alone = attention(c.qkv, c.heads, c.cos, c.sin);
    expect_same_bits(attention_(c.qkv.clone(), c.heads, c.cos, c.sin), alone, "without gradient");
    expect_same_bits(attention(c.qkv, c.heads, c.cos, c.sin), alone, "the input is as it was, without gradient");
  }
}

TEST(Attention, EmptyBatch) {
  const AttentionCase c = attention_case(0, 6, 2, 8, true, at::kFloat);
  const AttentionResult result = run_ours(c, grad_for(c));
  EXPECT_EQ(result.out.sizes(), (std::vector<int64_t>{0, 6, 16}));
  EXPECT_EQ(result.grad.sizes(), c.qkv.sizes());
}

TEST(Attention, GradientOnlyWhereNeeded) {
  const AttentionCase c = attention_case(1, 4, 1, 4, true, at::kFloat);
  EXPECT_FALSE(attention(c.qkv, 1, c.cos, c.sin).requires_grad());
  const at::Tensor leaf = c.qkv.clone().requires_grad_();
  EXPECT_TRUE(attention(leaf, 1, c.cos, c.sin).requires_grad());
  EXPECT_FALSE(attention_fits(c.qkv, 1)) << "our kernels with a gradient run on a GPU";
  EXPECT_TRUE(attention_fits_without_gradient(c.qkv, 1));
  EXPECT_FALSE(attention_fits_without_gradient(c.qkv.to(at::kBFloat16), 1));
  EXPECT_FALSE(attention_fits_without_gradient(at::empty({1, 513, 12}), 1));
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(attention(leaf, 1, c.cos, c.sin).requires_grad());
}

TEST(Attention, BadInputIsNamed) {
  const at::Tensor qkv = at::zeros({2, 5, 24}), cos = at::zeros({5, 2}), none;
  const auto message = [&](const at::Tensor& input, int64_t heads, const at::Tensor& c, const at::Tensor& s) {
    return error_of([&] { attention(input, heads, c, s); });
  };
  expect_message(message(qkv, 3, none, none), {"hrm::attention", "[2, 5, 24]", "3 heads"});
  expect_message(message(qkv[0], 2, none, none), {"hrm::attention", "[5, 24]"});
  expect_message(message(qkv, 0, none, none), {"hrm::attention", "0 heads"});
  expect_message(message(qkv.to(at::kInt), 2, none, none), {"hrm::attention", "floating-point", "Int"});
  expect_message(message(qkv, 2, cos, none), {"hrm::attention", "both", "[2, 5, 24]"});
  expect_message(message(qkv, 2, cos, at::zeros({4, 2})), {"hrm::attention", "[5, 2]", "[4, 2]"});
  expect_message(message(qkv, 2, cos.to(at::kHalf), cos), {"hrm::attention", "float32", "Half"});
  expect_message(message(qkv.requires_grad_(), 3, none, none), {"hrm::attention", "[2, 5, 24]", "3 heads"});
  expect_message(error_of([&] { attention_backward(qkv, qkv, qkv, qkv, 2, none, none); }),
                 {"hrm::attention_backward", "[2, 5, 24]", "[2, 5, 8]", "[2, 2, 5]"});
  expect_message(error_of([&] { rotate_qkv_backward(qkv, qkv, qkv, {}, {}); }),
                 {"hrm::rotate_qkv_backward", "[2, 5, 24]"});
  expect_message(error_of([&] {
                   rotate_qkv_(at::zeros({5, 2, 24}).transpose(0, 1), 2, cos, cos);
                 }),
                 {"hrm::rotate_qkv_", "contiguous", "[2, 5, 24]"});
}

TEST(Attention, ProjectedEqualsTheTwo) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const AttentionCase c = attention_case(3, 7, 2, 4, true, dtype);
    const at::Tensor h = normal({3, 7, 10}, 1, dtype), weight = normal({24, 10}, 2, dtype);
    const at::Tensor qkv = linear(h, weight, weight);
    expect_same_bits(attention_projected(h, weight, 2, c.cos, c.sin), attention(qkv, 2, c.cos, c.sin), cat(dtype));
    expect_same_bits(attention_projected(h, weight, 2, {}, {}), attention(qkv, 2, {}, {}), cat(dtype, ", not rotated"));
  }
  const at::Tensor h = normal({3, 7, 10}, 1, at::kFloat), weight = normal({24, 10}, 2, at::kFloat);
  EXPECT_EQ(attention_projected(h.narrow(0, 0, 0), weight, 2, {}, {}).sizes(), (std::vector<int64_t>{0, 7, 8}));
  const auto message = [&](const at::Tensor& input, const at::Tensor& w, int64_t heads, const at::Tensor& table) {
    return error_of([&] { attention_projected(input, w, heads, table, table); });
  };
  expect_message(message(h, weight, 3, {}), {"hrm::attention_projected", "[3, 7, 10]", "[24, 10]", "3 heads"});
  expect_message(message(h[0], weight, 2, {}), {"hrm::attention_projected", "[7, 10]"});
  expect_message(message(h, weight.t(), 2, {}), {"hrm::attention_projected", "[10, 24]"});
  expect_message(message(h, weight.to(at::kHalf), 2, {}), {"hrm::attention_projected", "dtype", "Half"});
  expect_message(message(h, weight, 2, at::zeros({6, 2})), {"hrm::attention_projected", "[7, 2]", "[6, 2]"});
}

TEST(Attention, PartsHaveNoDerivative) {
  const AttentionCase c = attention_case(1, 4, 1, 4, true, at::kFloat);
  const at::Tensor leaf = c.qkv.clone().requires_grad_();
  EXPECT_ANY_THROW({ std::get<0>(attention_forward(leaf, 1, c.cos, c.sin)).sum().backward(); });
  const at::Tensor weight = at::eye(12).requires_grad_();
  EXPECT_ANY_THROW({ attention_projected(c.qkv, weight, 1, c.cos, c.sin).sum().backward(); });
}

}  // namespace
}  // namespace hrm::ops

#include "ops/loss/softmax_loss_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(SoftmaxLoss, AsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t vocab : {1, 7, 37, 1000}) {
      for (const at::ScalarType label : {at::kInt, at::kLong}) {
        expect_good_softmax_loss(dtype, vocab, vocab + 3, label, at::kCPU, cat(dtype, " vocabulary ", vocab));
      }
    }
  }
}

TEST(SoftmaxLoss, PartsAsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t parts : {1, 2, 3}) {
      for (const int64_t vocab : {8, 37, 1000}) {
        expect_good_softmax_loss_of_parts(dtype, vocab, parts, parts, at::kInt, at::kCPU,
                                          cat(dtype, " vocabulary ", vocab, " in ", parts, " parts"));
      }
    }
  }
}

TEST(SoftmaxLoss, LargeLogitsStayFinite) {
  const at::Tensor logits = at::tensor({3e4F, -3e4F, 2.9e4F}).view({1, 3}).clone();
  const at::Tensor loss = softmax_loss_(logits, at::ones({1}, at::kInt), at::ones({1}));
  EXPECT_NEAR(loss.item<double>(), 6e4, 1);
  EXPECT_TRUE(at::equal(logits, at::tensor({1.0F, -1.0F, 0.0F}).view({1, 3})));
}

TEST(SoftmaxLoss, BadInputIsNamed) {
  const at::Tensor logits = at::zeros({2, 8}), labels = at::zeros({2}, at::kInt);
  const auto message = [&](const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& c) {
    return error_of([&] { softmax_loss_(a, b, c); });
  };
  expect_message(message(logits, at::zeros({3}, at::kInt), {}), {"hrm::softmax_loss_", "[2, 8]", "[3]"});
  expect_message(message(logits.t(), at::zeros({8}, at::kInt), {}), {"hrm::softmax_loss_", "side by side", "[8, 2]"});
  expect_message(message(logits, at::zeros({2}), {}), {"hrm::softmax_loss_", "int32", "Float"});
  expect_message(message(logits, labels, at::zeros({2}, at::kDouble)), {"hrm::softmax_loss_", "Double"});
  expect_message(error_of([&] { softmax_loss_facts(logits, labels, -1); }), {"hrm::softmax_loss_facts", "-1"});
  expect_message(error_of([&] {
                   softmax_loss_part_(logits, labels, 0, at::zeros({2, 3, 3}), {});
                 }),
                 {"hrm::softmax_loss_part_", "[2, 3, 3]", "[2, 8]"});
}

}  // namespace
}  // namespace hrm::ops

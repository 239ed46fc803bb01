#include "ops/embedding/embed_tokens_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(EmbedTokens, AsGoodAsPlainAten) {
  expect_good_embed_tokens(at::kCPU);
}

TEST(EmbedTokens, GradientGoesWhereItIsNeeded) {
  const at::Tensor ids = at::tensor({2, 0, 2}, at::kLong), table = at::ones({3, 4}).requires_grad_();
  for (int use = 0; use < 2; ++use) embed_tokens(ids, table, at::kFloat).sum().backward();
  EXPECT_TRUE(at::equal(table.grad(), at::tensor({2.0F, 0.0F, 4.0F}).unsqueeze(1).expand({3, 4})));
  EXPECT_FALSE(embed_tokens(ids, table.detach(), at::kFloat).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(embed_tokens(ids, table, at::kFloat).requires_grad());
}

TEST(EmbedTokens, BadInputIsNamed) {
  const at::Tensor table = at::zeros({3, 4}), ids = at::zeros({2}, at::kInt);
  const auto message = [&](const at::Tensor& grad_table, const at::Tensor& grad, const at::Tensor& where) {
    return error_of([&] { embed_tokens_backward_(grad_table, grad, where); });
  };
  expect_message(message(table, at::zeros({3, 4}), ids), {"hrm::embed_tokens_backward_", "[3, 4]", "[2]"});
  expect_message(message(table.to(at::kHalf), at::zeros({2, 4}), ids), {"hrm::embed_tokens_backward_", "Half"});
  expect_message(message(table, at::zeros({2, 4}), ids.to(at::kFloat)), {"hrm::embed_tokens_backward_", "int32"});
  expect_message(error_of([&] {
                   embed_tokens(ids, table, at::zeros({2, 4}, at::kHalf));
                 }),
                 {"hrm::embed_tokens", "[3, 4]", "[2, 4]"});
}

}  // namespace
}  // namespace hrm::ops

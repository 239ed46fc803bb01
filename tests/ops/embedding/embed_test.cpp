#include "hrm/ops/embed.h"

#include "ops/embedding/embed_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Embed, AsGoodAsPlainAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    expect_good_embeds(dtype, at::kCPU);
  }
}

TEST(Embed, Int64Inputs) {
  EmbedCase c = make_embed(3, 5, 11, 32, 1, 32, at::kFloat, at::kCPU);
  const EmbedResult want = run_embed(c);
  c.inputs = c.inputs.to(at::kLong);
  const EmbedResult got = run_embed(c);
  expect_same_bits(got.x, want.x);
  expect_same_bits(got.grad_table, want.grad_table);
}

TEST(Embed, EmptyBatch) {
  const EmbedCase c = make_embed(0, 5, 11, 32, 1, 32, at::kFloat, at::kCPU);
  const EmbedResult got = run_embed(c);
  EXPECT_EQ(got.x.sizes(), (std::vector<int64_t>{0, 6, 32}));
  EXPECT_EQ(got.grad_table.abs().sum().item<double>(), 0);
}

TEST(Embed, BadInputIsNamed) {
  const EmbedCase c = make_embed(3, 5, 11, 32, 1, 32, at::kFloat, at::kCPU);
  expect_message(error_of([&] { embed(c.inputs, c.table, {}, 1, 1, at::kFloat); }), {"hrm::embed", "puzzle_rows"});
  expect_message(error_of([&] {
                   embed(c.inputs, c.table, at::zeros({3, 33}), 1, 1, at::kFloat);
                 }),
                 {"hrm::embed", "W at most 32", "[3, 33]"});
  expect_message(error_of([&] { embed(c.inputs.to(at::kFloat), c.table, {}, 0, 1, at::kFloat); }),
                 {"hrm::embed", "int32", "Float"});
  expect_message(error_of([&] { embed(c.inputs, c.table.to(at::kHalf), {}, 0, 1, at::kHalf); }),
                 {"hrm::embed", "float32", "Half"});
  expect_message(error_of([&] { embed_backward(c.grad_x, c.inputs, 11, 33, 1); }),
                 {"hrm::embed_backward", "33", "[3, 6, 32]"});
  expect_message(error_of([&] { embed_backward(c.grad_x, c.inputs.narrow(0, 0, 2), 11, 0, 1); }),
                 {"hrm::embed_backward", "[3, 6, 32]", "[2, 5]"});
}

}  // namespace
}  // namespace hrm::ops

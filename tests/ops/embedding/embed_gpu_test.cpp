#include "hrm/ops/embed.h"

#include "ops/embedding/embed_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(EmbedGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  const WithoutTf32 full_products;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) expect_good_embeds(dtype, at::kCUDA);
}

TEST(EmbedGpu, AsGoodAsPlainAtenLarge) {
  HRM_NEEDS_GPU();
  const WithoutTf32 full_products;
  expect_good_embed(make_embed(384, 81, 11, 512, 1, 512, at::kBFloat16, at::kCUDA), "HRM's size");
  expect_good_embed(make_embed(32, 900, 6, 512, 16, 512, at::kBFloat16, at::kCUDA), "TRM's size for mazes");
}

TEST(EmbedGpu, MisalignedGradient) {
  HRM_NEEDS_GPU();
  EmbedCase c = make_embed(7, 9, 11, 64, 1, 64, at::kBFloat16, at::kCUDA);
  const auto [table, puzzles] = embed_backward(c.grad_x, c.inputs, 11, 64, c.scale);
  at::Tensor wider = at::zeros({c.grad_x.numel() + 1}, c.grad_x.options());
  const at::Tensor shifted = wider.slice(0, 1).view(c.grad_x.sizes());
  shifted.copy_(c.grad_x);
  const auto [table2, puzzles2] = embed_backward(shifted, c.inputs, 11, 64, c.scale);
  EXPECT_LE(largest_difference(table, table2), 1e-5 * table.abs().max().item<double>());
  expect_same_bits(puzzles, puzzles2);
}

TEST(EmbedGpu, NonContiguousInputs) {
  HRM_NEEDS_GPU();
  EmbedCase c = make_embed(7, 9, 11, 64, 1, 64, at::kBFloat16, at::kCUDA);
  const EmbedResult want = run_embed(c);
  c.inputs = c.inputs.t().contiguous().t();
  c.grad_x = c.grad_x.transpose(0, 1).contiguous().transpose(0, 1);
  const EmbedResult got = run_embed(c);
  expect_same_bits(got.x, want.x);
  expect_same_bits(got.grad_table, want.grad_table);
  expect_same_bits(got.grad_puzzles, want.grad_puzzles);
}

TEST(EmbedGpu, SameBitsEachTimeAndInsideACapturedGraph) {
  HRM_NEEDS_GPU();
  const EmbedCase c = make_embed(64, 81, 11, 512, 1, 512, at::kBFloat16, at::kCUDA);
  EmbedResult out;
  Captured captured([&] { out = run_embed(c); });
  for (uint64_t round = 0; round < 3; ++round) {
    c.inputs.copy_(c.inputs.roll(1));
    c.grad_x.copy_(normal(c.grad_x.sizes(), 30 + round, at::kBFloat16));
    captured.replay();
    const EmbedResult eager = run_embed(c);
    expect_same_bits(out.x, eager.x);
    expect_same_bits(out.grad_table, eager.grad_table);
    expect_same_bits(out.grad_puzzles, eager.grad_puzzles);
  }
}

}  // namespace
}  // namespace hrm::ops

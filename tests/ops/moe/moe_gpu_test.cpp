#include "ops/gpu_testing.h"
#include "ops/moe/moe_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(MoeGpu, AsGoodAsOneExpertAfterTheOther) {
  HRM_NEEDS_GPU();
  const WithoutTf32 exact;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    // The products of our own: widths of 256.
    expect_good_moe(make_moe(300, 256, 512, 4, 2, dtype, at::kCUDA), cat(dtype, " D256 F512 E4 K2"));
    expect_good_moe(make_moe(1000, 512, 256, 7, 1, dtype, at::kCUDA), cat(dtype, " D512 F256 E7 K1"));
    expect_good_moe(make_moe(129, 256, 256, 64, 8, dtype, at::kCUDA), cat(dtype, " D256 F256 E64 K8"), true);
    expect_good_moe(make_moe(1, 256, 256, 3, 1, dtype, at::kCUDA), cat(dtype, " one token"));
  }
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    expect_good_moe(make_moe(77, 40, 72, 5, 2, dtype, at::kCUDA), cat(dtype, " D40 F72"));
    expect_good_moe(make_moe(20, 13, 9, 3, 2, dtype, at::kCUDA), cat(dtype, " D13 F9"));
  }
}

TEST(MoeGpu, EmptyAndCrowdedExperts) {
  HRM_NEEDS_GPU();
  MoeCase c = make_moe(500, 256, 256, 5, 2, at::kBFloat16, at::kCUDA);
  empty_expert(c, 0);
  empty_expert(c, 3);
  expect_good_moe(c, "two experts without tokens");
  c.top_k = 1;
  steer(c, 4);
  expect_good_moe(c, "all tokens to the last");
}

TEST(MoeGpu, Plans) {
  HRM_NEEDS_GPU();
  for (const int64_t experts : {1, 3, 64, 1000}) {
    for (const int64_t tokens : {1, 100, 700, 20000}) {
      at::Generator generator = at::detail::createCPUGenerator();
      generator.set_current_seed(static_cast<uint64_t>(tokens));
      expect_good_plan(at::randint(-1, experts, {tokens, 2}, generator, at::kInt).cuda(), experts);
    }
  }
  expect_good_plan(at::full({5, 2}, -1, at::kInt).cuda(), 4);
}

TEST(MoeGpu, Gates) {
  HRM_NEEDS_GPU();
  expect_good_gates(at::kCUDA);
}

TEST(MoeGpu, Jitter) {
  HRM_NEEDS_GPU();
  expect_good_jitter(at::kCUDA);
}

TEST(MoeGpu, LoadLoss) {
  HRM_NEEDS_GPU();
  expect_good_load_loss(at::kCUDA);
}

TEST(MoeGpu, StaleGradientsAreOverwritten) {
  HRM_NEEDS_GPU();
  for (const int64_t dim : {24, 128, 256, 320}) expect_stale_overwritten(at::kCUDA, at::kBFloat16, dim);
  expect_stale_overwritten(at::kCUDA, at::kHalf, 256);
}

TEST(MoeGpu, Loads) {
  HRM_NEEDS_GPU();
  expect_good_loads(at::kCUDA);
  const auto counts = make_loads(3, 64, 5, at::kCUDA);
  at::Tensor loads;
  Captured captured([&] { loads = loads_of(counts); });
  for (uint64_t round = 0; round < 3; ++round) {
    const auto now = make_loads(3, 64, 100 + 10 * round, at::kCUDA);
    for (size_t layer = 0; layer < now.size(); ++layer) counts[layer].copy_(now[layer]);
    captured.replay();
    expect_same_bits(loads, loads_of(now), cat("round ", round));
  }
}

TEST(MoeGpu, SameEachTime) {
  HRM_NEEDS_GPU();
  const MoeCase c = make_moe(2000, 512, 512, 8, 2, at::kBFloat16, at::kCUDA);
  expect_same_each_time(
      [&] {
        const MoeResult r = run_moe(c);
        return std::vector<at::Tensor>{r.out, r.grad_x, r.grad_logits, r.grad_up, r.grad_down};
      },
      10, "moe");
}

// How many tokens an expert gets changes from replay to replay.
TEST(MoeGpu, InAGraph) {
  HRM_NEEDS_GPU();
  const MoeCase c = make_moe(700, 256, 512, 6, 2, at::kBFloat16, at::kCUDA);
  MoeCase input = c;
  input.logits = c.logits.clone();
  MoeResult result;
  Captured captured([&] { result = run_moe(input); });
  for (int i = 0; i < 4; ++i) {
    MoeCase now = c;
    now.logits = normal({700, 6}, 40 + static_cast<uint64_t>(i), at::kFloat, at::kCUDA);
    if (i == 2) steer(now, 1);
    input.logits.copy_(now.logits);
    captured.replay();
    const MoeResult eager = run_moe(now);
    expect_same_bits(result.out, eager.out, "out");
    expect_same_bits(result.grad_x, eager.grad_x, "gradient of x");
    expect_same_bits(result.grad_logits, eager.grad_logits, "gradient of the logits");
    expect_same_bits(result.grad_up, eager.grad_up, "gradient of up");
    expect_same_bits(result.grad_down, eager.grad_down, "gradient of down");
  }
}

TEST(MoeGpu, Router) {
  HRM_NEEDS_GPU();
  const at::Tensor x = normal({90, 64}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor weight = normal({4, 64}, 2, at::kBFloat16, at::kCUDA), master = weight.to(at::kFloat);
  const at::Tensor logits = moe_router(x, weight, master);
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  EXPECT_LE(largest_difference(logits, x.to(at::kDouble).mm(weight.to(at::kDouble).t())), 1e-4);
}

TEST(MoeGpu, DroppedPicksLarge) {
  HRM_NEEDS_GPU();
  const MoeCase c = make_moe(4096, 1024, 1024, 16, 2, at::kBFloat16, at::kCUDA);
  const MoeGate gate = moe_gate(c.logits, 2, MoeScore::softmax, false);
  const at::Tensor kept = moe_drop(gate.ids, gate.weights, 16, 480);
  EXPECT_GT(kept.lt(0).sum().item<int64_t>(), 0);
  const at::Tensor out = moe_experts(c.x, gate.weights, moe_plan(kept, 16), c.up, c.up, c.down, c.down);
  expect_near(out, reference::moe_experts(c.x, gate.weights, kept, c.up, c.down), "out");
}

}  // namespace
}  // namespace hrm::ops

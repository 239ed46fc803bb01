#include "hrm/ops/token_loss.h"

#include "ops/gpu_testing.h"
#include "ops/loss/token_loss_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(TokenLossGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) expect_good_sizes(dtype, at::kCUDA);
}

TEST(TokenLossGpu, AsGoodAsPlainAtenLarge) {
  HRM_NEEDS_GPU();
  for (const auto& [kind, precision] : loss_modes()) {
    expect_good_tokens(make_tokens(384, 81, 1, 0, 11, at::kBFloat16, kind, precision, at::kCUDA));
    expect_good_tokens(make_tokens(16, 900, 16, 0, 6, at::kBFloat16, kind, precision, at::kCUDA));
  }
}

TEST(TokenLossGpu, FirstOfEquals) {
  HRM_NEEDS_GPU();
  expect_first_of_equals(at::kCUDA);
}

TEST(TokenLossGpu, Strides) {
  HRM_NEEDS_GPU();
  expect_good_strides(at::kCUDA);
}

TEST(TokenLossGpu, AgreesWithTheCpu) {
  HRM_NEEDS_GPU();
  for (const auto& [kind, precision] : loss_modes()) {
    const TokenCase host = make_tokens(8, 81, 1, 0, 11, at::kFloat, kind, precision, at::kCPU);
    SCOPED_TRACE(name_of(host));
    TokenCase device = host;
    device.logits = host.logits.cuda();
    device.labels = host.labels.cuda();
    const TokenResult want = run_tokens(host), got = run_tokens(device);
    const double unit = unit_roundoff(want.out.loss.scalar_type());
    EXPECT_LE(largest_difference(got.out.loss, want.out.loss), 20 * unit * want.out.loss.abs().max().item<double>());
    EXPECT_LE(largest_difference(got.grad, want.grad), 4e-7 * want.grad.abs().max().item<double>());
    expect_same_bits(got.out.right.cpu(), want.out.right);
  }
}

TEST(TokenLossGpu, SameBitsEachTime) {
  HRM_NEEDS_GPU();
  for (const auto& [kind, precision] : loss_modes()) {
    const TokenCase c = make_tokens(384, 81, 1, 0, 11, at::kBFloat16, kind, precision, at::kCUDA);
    SCOPED_TRACE(name_of(c));
    const TokenResult first = run_tokens(c);
    for (int i = 0; i < 3; ++i) {
      const TokenResult again = run_tokens(c);
      expect_same_bits(again.out.loss, first.out.loss);
      expect_same_bits(again.grad, first.grad);
    }
  }
}

TEST(TokenLossGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  for (const auto& [kind, precision] : loss_modes()) {
    const TokenCase c = make_tokens(6, 9, 1, 0, 11, at::kBFloat16, kind, precision, at::kCUDA);
    SCOPED_TRACE(name_of(c));
    TokenResult out;
    const at::Tensor weights = weights_for(c, run_tokens(c).out.loss.scalar_type());
    Captured captured([&] { out = run_tokens(c, weights); });
    for (uint64_t round = 0; round < 3; ++round) {
      c.logits.copy_(normal(c.logits.sizes(), 10 + round, at::kBFloat16));
      c.labels.copy_(c.labels.roll(1));
      captured.replay();
      const TokenResult eager = run_tokens(c, weights);
      expect_same_bits(out.out.loss, eager.out.loss);
      expect_same_bits(out.out.right, eager.out.right);
      expect_same_bits(out.grad, eager.grad);
    }
  }
}

}  // namespace
}  // namespace hrm::ops

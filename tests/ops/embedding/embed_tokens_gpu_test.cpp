#include "ops/embedding/embed_tokens_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(EmbedTokensGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  expect_good_embed_tokens(at::kCUDA);
}

TEST(EmbedTokensGpu, SameBitsEachTimeAndInAGraph) {
  HRM_NEEDS_GPU();
  const at::Tensor grad = normal({4000, 96}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor ids = normal({4000}, 2, at::kFloat).mul(6).abs().to(at::kInt).to(at::kCUDA);
  const auto run = [&] {
    const at::Tensor table = at::zeros({100, 96}, at::device(at::kCUDA));
    embed_tokens_backward_(table, grad, ids);
    return std::vector<at::Tensor>{table};
  };
  expect_same_each_time(run, 10, "gradient");
  at::Tensor got;
  Captured captured([&] { got = run()[0]; });
  for (uint64_t round = 0; round < 3; ++round) {
    ids.copy_(normal({4000}, 10 + round, at::kFloat).mul(20).abs().to(at::kInt));
    captured.replay();
    expect_same_bits(got, run()[0], cat("round ", round));
  }
}

}  // namespace
}  // namespace hrm::ops

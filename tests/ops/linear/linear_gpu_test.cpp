#include "hrm/ops/linear.h"

#include "hrm/ops/gemm_tuning.h"
#include "ops/gpu_testing.h"
#include "ops/linear/linear_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(LinearGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  const WithoutTf32 without_tf32;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [in, out] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {97, 24}, {24, 97}, {512, 11}, {128, 512}, {512, 2}}) {
      expect_good_linear(make_linear({4, 9}, in, out, dtype, at::kCUDA), cat(dtype, " ", in, " to ", out));
    }
  }
  expect_good_linear(make_linear({2, 3, 5}, 16, 8, at::kBFloat16, at::kCUDA), "four dimensions");
}

TEST(LinearGpu, NonContiguousAndMisaligned) {
  HRM_NEEDS_GPU();
  const WithoutTf32 without_tf32;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    LinearCase c = make_linear({6, 5}, 16, 8, dtype, at::kCUDA);
    c.x = normal({5, 16, 6}, 1, dtype, at::kCUDA).permute({2, 0, 1});
    c.grad_y = normal({5, 6, 8}, 4, dtype, at::kCUDA).transpose(0, 1);
    expect_good_linear(c, cat(dtype, " strided"));
    c = make_linear({30}, 16, 8, dtype, at::kCUDA);
    c.x = normal({30 * 16 + 1}, 1, dtype, at::kCUDA).slice(0, 1).view({30, 16});
    c.grad_y = normal({30 * 8 + 1}, 4, dtype, at::kCUDA).slice(0, 1).view({30, 8});
    expect_good_linear(c, cat(dtype, " misaligned"));
  }
}

TEST(LinearGpu, WithAResidualAndTheWeightsGradientAlone) {
  HRM_NEEDS_GPU();
  const WithoutTf32 full;
  for (const GemmTuning tuning : {GemmTuning::off, GemmTuning::auto_}) {
    set_gemm_cache("", /*writes=*/false);
    set_gemm_tuning(tuning);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const std::string what = cat(dtype, tuning == GemmTuning::off ? "" : ", tuned");
      expect_good_linear_add(make_linear({3, 5}, 12, 7, dtype, at::kCUDA), what);
      expect_good_linear_add(make_linear({4, 128}, 256, 384, dtype, at::kCUDA), what + ", larger");
      expect_good_weight_gradient(make_linear({3, 5}, 12, 7, dtype, at::kCUDA), what);
      expect_good_weight_gradient(make_linear({4, 128}, 256, 384, dtype, at::kCUDA), what + ", larger");
    }
  }
  set_gemm_tuning(GemmTuning::off);
}

TEST(LinearGpu, SevenUsesAccumulateInFloat32) {
  HRM_NEEDS_GPU();
  expect_float32_accumulation(at::kCUDA);
  const WithoutTf32 without_tf32;  // the reference multiplies in float32
  const WithReference with_reference;
  expect_float32_accumulation(at::kCUDA);
}

TEST(LinearGpu, SameBitsEachTimeLarge) {
  HRM_NEEDS_GPU();
  const LinearCase c = make_linear({64, 82}, 512, 1536, at::kBFloat16, at::kCUDA);
  const LinearResult first = run_ours(c);
  for (int i = 0; i < 3; ++i) {
    const LinearResult again = run_ours(c);
    expect_same_bits(again.y, first.y);
    expect_same_bits(again.grad_x, first.grad_x);
    expect_same_bits(again.grad_weight, first.grad_weight);
    expect_same_bits(again.grad_bias, first.grad_bias);
  }
}

TEST(LinearGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const LinearCase c = make_linear({8, 5}, 64, 48, dtype, at::kCUDA);
    const at::Tensor x = c.x.clone().requires_grad_();
    const at::Tensor master = c.weight.clone().requires_grad_();
    const at::Tensor bias = c.bias.clone().requires_grad_();
    const at::Tensor copy = dtype == at::kFloat ? master : c.weight.to(dtype);
    at::Tensor grad_weight = at::zeros_like(c.weight), grad_bias = at::zeros_like(c.bias);
    at::Tensor y, grad_x;
    // Two uses of one weight: the second adds to what the first left.
    const auto work = [&] {
      grad_weight.zero_();
      grad_bias.zero_();
      y = linear(x, copy, master, bias, grad_weight, grad_bias);
      const at::Tensor again = linear(x, copy, master, bias, grad_weight, grad_bias);
      grad_x = torch::autograd::grad({y, again}, {x}, {c.grad_y, c.grad_y})[0];
    };
    Captured captured(work);
    for (uint64_t round = 0; round < 3; ++round) {
      {
        const at::NoGradGuard no_grad;
        x.copy_(normal(x.sizes(), 10 + round, dtype));
      }
      captured.replay();
      const std::vector<at::Tensor> from_graph = {y.detach().clone(), grad_x.clone(), grad_weight.clone(),
                                                  grad_bias.clone()};
      const at::Tensor graph_y = y, graph_grad_x = grad_x;  // the graph writes these; work() below makes new ones
      work();
      expect_same_bits(from_graph[0], y.detach(), cat(dtype, " y"));
      expect_same_bits(from_graph[1], grad_x, cat(dtype, " gradient of x"));
      expect_same_bits(from_graph[2], grad_weight, cat(dtype, " gradient of the weight"));
      expect_same_bits(from_graph[3], grad_bias, cat(dtype, " gradient of the bias"));
      y = graph_y;
      grad_x = graph_grad_x;
    }
  }
}

}  // namespace
}  // namespace hrm::ops

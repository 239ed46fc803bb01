#include "nn/fp8_rows_block_cases.h"

namespace hrm::nn {
namespace {

using namespace testing;  // NOLINT

double relative_norm(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).norm().item<double>() / (b.norm().item<double>() + 1e-30);
}

// In float32 only roundings of sums differ, which now and then move a number of 8 bits to its neighbour.
TEST(Fp8RowsBlock, HalvesAreTheirLayers) {
  const std::vector<std::vector<std::string>> all_targets{
      {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"},
      {"v_proj", "up_proj"},
      {"q_proj", "down_proj"}};
  for (const std::vector<std::string>& targets : all_targets) {
    for (const bool normed : {false, true}) {
      for (const bool trains_norm : {false, true}) {
        AdaptedHalves halves(at::kCPU, at::kFloat, targets, 0, trains_norm);
        const at::Tensor x = test::numbers({2, 9, FrozenHalves::kWidth}, 1), grad = test::numbers(x.sizes(), 2);
        const ops::QkvHeadOptions options = head_options(normed, 9, at::kCPU);
        const std::vector<at::Tensor> want = plain_halves(halves, x, options, grad, plain_layer);
        for (const bool separate : {false, true}) {
          const std::vector<at::Tensor> got = fused_halves(halves, x, options, grad, separate);
          for (size_t i = 0; i < want.size(); ++i) {
            EXPECT_LE(relative_norm(got[i], want[i]), 2e-3)
                << targets.front() << (normed ? " normed" : "") << (trains_norm ? " trained" : "") << " " << i;
          }
        }
      }
    }
  }
}

// The mask of the forward pass is drawn again: the gradient of A is that of the rows that it saw.
TEST(Fp8RowsBlock, Dropout) {
  const std::vector<std::string> targets{"up_proj", "down_proj"};
  AdaptedHalves dropping(at::kCPU, at::kFloat, targets, 0.4, false), plain(at::kCPU, at::kFloat, targets, 0, false);
  const at::Tensor x = test::numbers({2, 9, FrozenHalves::kWidth}, 1), grad = test::numbers(x.sizes(), 2);
  const ops::QkvHeadOptions options = head_options(false, 9, at::kCPU);
  const std::vector<at::Tensor> once = fused_halves(dropping, x, options, grad),
                                again = fused_halves(dropping, x, options, grad),
                                without = fused_halves(plain, x, options, grad);
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_TRUE(at::equal(once[i], again[i])) << i;
    EXPECT_GT(relative_norm(once[i], without[i]), 0.01) << i;
  }
  dropping.set->set_dropout(false);
  const std::vector<at::Tensor> off = fused_halves(dropping, x, options, grad);
  for (size_t i = 0; i < off.size(); ++i) EXPECT_TRUE(at::equal(off[i], without[i])) << i;
}

TEST(Fp8RowsBlock, WithoutAdaptersOrGradient) {
  AdaptedHalves halves(at::kCPU, at::kFloat, {"q_proj", "down_proj"}, 0, false);
  const FrozenHalves& m = *halves.model;
  const at::Tensor x = test::numbers({1, 7, FrozenHalves::kWidth}, 1);
  const at::Tensor with = rows_swiglu_add(x, *m.norm, *m.gate_up_proj, *m.down_proj).detach();
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(rows_swiglu_add(x, *m.norm, *m.gate_up_proj, *m.down_proj), with));
  }
  const WithLoraMode off(*halves.set, LoraMode::off);
  const at::NoGradGuard no_grad;
  const at::Tensor without = rows_swiglu_add(x, *m.norm, *m.gate_up_proj, *m.down_proj);
  const ops::NormedStream stream = m.norm->forward_stream(x);
  const at::Tensor want = stream.x + plain_layer(ops::swiglu(plain_layer(stream.y, *m.gate_up_proj)), *m.down_proj);
  EXPECT_LE(relative_norm(without, want), 1e-3);
  EXPECT_GT(relative_norm(with, want), 0.01);
}

// What blocks ask before they take the fused form.
TEST(Fp8RowsBlock, ACpuKeepsTheLayersOneByOne) {
  AdaptedHalves halves(at::kCPU, at::kBFloat16, {"q_proj"}, 0, false);
  EXPECT_FALSE(halves.model->qkv_proj->takes_fp8_rows(at::ones({64, FrozenHalves::kWidth}, at::kBFloat16)));
}

}  // namespace
}  // namespace hrm::nn

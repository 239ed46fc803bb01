// Blocks over frozen e4m3 weights on a GPU: their halves quantise in the kernels that compute, with the bits of the
// layers one by one.
#include <ATen/record_function.h>

#include <map>

#include "hrm/nn/causal_attention.h"
#include "hrm/nn/feed_forward.h"
#include "nn/fp8_rows_block_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::nn {
namespace {

using namespace ops::testing;  // NOLINT
using namespace testing;       // NOLINT

// How often each op ran while it lives, on this thread.
class CountedOps {
 public:
  CountedOps() {
    counts().clear();
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& fn) -> std::unique_ptr<at::ObserverContext> {
          ++counts()[fn.name()];
          return nullptr;
        }));
  }
  ~CountedOps() { at::removeCallback(handle_); }
  static std::map<std::string, int>& counts() {
    static std::map<std::string, int> all;
    return all;
  }

 private:
  at::CallbackHandle handle_;
};

struct FrozenBlock : torch::nn::Module {
  static constexpr int64_t kWidth = 256;

  explicit FrozenBlock(bool qk_norm) {
    const AttentionSizes sizes{.width = kWidth, .heads = 4, .kv_heads = 2, .head_dim = 64, .qk_norm = qk_norm};
    norm = register_module("norm", std::make_shared<RmsNorm>(kWidth, 1e-6, at::kCUDA));
    attention = register_module("attention", std::make_shared<CausalAttention>(sizes, at::kCUDA, WeightFormat::fp8));
    mlp = register_module("mlp", std::make_shared<SwigluFeedForward>(kWidth, 528, at::kCUDA, WeightFormat::fp8));
  }

  static std::shared_ptr<FrozenBlock> make(bool qk_norm, bool adapted) {
    const auto block = std::make_shared<FrozenBlock>(qk_norm);
    block->hold(adapted);
    return block;
  }

  void hold(bool adapted) {
    if (adapted) set = std::make_unique<LoraSet>(*this, LoraOptions{.rank = 16, .alpha = 8, .seed = 5}, at::kCUDA);
    init_parameters(*this, 3);
    const at::NoGradGuard no_grad;
    uint64_t seed = 20;
    if (set) {
      for (const LoraAdapter::Pair& pair : set->pairs()) pair.B.copy_(normal(pair.B.sizes(), ++seed, at::kFloat) / 20);
    }
    for (const QuantizedLayer& layer : quantized_layers(*this)) {
      layer.linear->hold_quantized(normal(layer.linear->weight().sizes(), ++seed, at::kFloat) / 16, layer.weight);
    }
    keep_frozen_as(*this, at::kBFloat16);
    share_quantized_workspace(*this, at::kBFloat16);
    set_fp8_products(*this, true);
    parameters.build(*this, at::kBFloat16);
    rotary = make_rotary_table(100, 64, 10000, at::kCUDA);
  }

  at::Tensor run(const at::Tensor& x, bool fused) const {
    const AttentionPass pass{.rotary = {rotary.cos.narrow(0, 0, x.size(1)), rotary.sin.narrow(0, 0, x.size(1))}};
    if (fused) return mlp->normed_add(*norm, attention->normed_add(*norm, x, pass));
    const ops::NormedStream first = norm->forward_stream(x);
    const at::Tensor h = attention->forward_add(first.y, first.x, pass);
    const ops::NormedStream second = norm->forward_stream(h);
    return mlp->forward_add(second.y, second.x);
  }

  std::shared_ptr<RmsNorm> norm;
  std::shared_ptr<CausalAttention> attention;
  std::shared_ptr<SwigluFeedForward> mlp;
  std::unique_ptr<LoraSet> set;
  ParameterSet parameters;
  RotaryTable rotary;
};

// 2 x 36 rows are no multiple of 16.
TEST(Fp8RowsBlockGpu, BlocksAreTheirLayersToTheBit) {
  HRM_NEEDS_GPU();
  if (!ops::has_fp8_products(at::kCUDA)) GTEST_SKIP() << "no products with scales for rows on this GPU";
  for (const bool qk_norm : {false, true}) {
    for (const bool transposed : {false, true}) {
      const auto held = FrozenBlock::make(qk_norm, true);
      FrozenBlock& block = *held;
      set_fp8_products(block, true, transposed);
      for (const int64_t length : {36, 100}) {
        const at::Tensor grad = normal({2, length, FrozenBlock::kWidth}, 9, at::kBFloat16, at::kCUDA);
        const auto pass = [&](bool fused) {
          block.parameters.flat_grad().zero_();
          const at::Tensor x = normal(grad.sizes(), 1, at::kBFloat16, at::kCUDA).requires_grad_();
          const at::Tensor y = block.run(x, fused);
          y.backward(grad);
          return std::vector<at::Tensor>{y.detach(), x.grad(), block.parameters.flat_grad().clone()};
        };
        const std::string what = cat(qk_norm ? "norms" : "no norms", transposed ? ", transposed" : "", ", ", length);
        const std::vector<at::Tensor> plain = pass(false);
        std::vector<at::Tensor> fused;
        {
          const CountedOps counted;
          fused = pass(true);
          auto& calls = CountedOps::counts();
          EXPECT_EQ(calls["hrm::weighted_rms_norm_rows"], 2) << what;
          EXPECT_EQ(calls["hrm::qkv_heads_backward_rows"], 1) << what;
          EXPECT_EQ(calls["hrm::swiglu_rows"], 1) << what;
          EXPECT_EQ(calls["hrm::swiglu_backward_rows"], 1) << what;
          EXPECT_EQ(calls["hrm::fp8_rows_product"], 6) << what << ": all but those of o_proj, which are within its op";
          EXPECT_EQ(calls["hrm::dequantize_weight8_"], 0) << what;
          EXPECT_EQ(calls["hrm::transpose_fp8_"], transposed ? 0 : 4) << what;
        }
        for (size_t i = 0; i < plain.size(); ++i) expect_same_bits(fused[i], plain[i], cat(what, ", result ", i));
      }
    }
  }
}

TEST(Fp8RowsBlockGpu, WithoutAdaptersOrGradient) {
  HRM_NEEDS_GPU();
  if (!ops::has_fp8_products(at::kCUDA)) GTEST_SKIP() << "no products with scales for rows on this GPU";
  const at::NoGradGuard no_grad;
  const auto held = FrozenBlock::make(true, false);
  const FrozenBlock& block = *held;
  const at::Tensor x = normal({2, 36, FrozenBlock::kWidth}, 1, at::kBFloat16, at::kCUDA);
  expect_same_bits(block.run(x, true), block.run(x, false));
}

}  // namespace
}  // namespace hrm::nn

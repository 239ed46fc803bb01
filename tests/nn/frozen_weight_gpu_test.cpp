// Adapters beside frozen e4m3 weights whose products run in 8 bits.
#include "hrm/nn/frozen_weight.h"
#include "hrm/nn/lora.h"
#include "ops/gpu_testing.h"

namespace hrm::nn {
namespace {

using namespace ops::testing;  // NOLINT

constexpr int64_t kIn = 272, kOut = 144;

struct OneFrozenLayer : torch::nn::Module, HasAdaptableLinears {
  OneFrozenLayer() {
    layer = register_module("layer", std::make_shared<Linear>(kIn, kOut, at::kCUDA, /*bias=*/false, WeightFormat::fp8));
  }
  std::vector<AdaptableLinear> adaptable_linears() override { return {{layer, {{"a", 48}, {"b", kOut - 48}}}}; }

  std::shared_ptr<Linear> layer;
};

struct AdaptedE4m3 {
  std::shared_ptr<OneFrozenLayer> model = std::make_shared<OneFrozenLayer>();
  std::unique_ptr<LoraSet> set;
  ParameterSet parameters;

  AdaptedE4m3() {
    set = std::make_unique<LoraSet>(*model, LoraOptions{.rank = 4, .alpha = 8, .targets = {"b"}, .seed = 5}, at::kCUDA);
    init_parameters(*model, 3);
    const at::NoGradGuard no_grad;
    for (const LoraAdapter::Pair& pair : set->pairs()) pair.B.copy_(normal(pair.B.sizes(), 21, at::kFloat) / 20);
    model->layer->hold_quantized(normal({kOut, kIn}, 22, at::kFloat) / 16, "weight");
    keep_frozen_as(*model, at::kBFloat16);
    share_quantized_workspace(*model, at::kBFloat16);
    parameters.build(*model, at::kBFloat16);
  }
};

double relative(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).norm().item<double>() / b.to(at::kDouble).norm().item<double>();
}

// The base product and its gradient change by what 8 bits round, the adapter's own gradients not at all.
TEST(FrozenWeightGpu, AdaptersBesideProductsIn8Bits) {
  HRM_NEEDS_GPU();
  if (!ops::has_fp8_products(at::kCUDA)) GTEST_SKIP() << "no products with scales for rows on this GPU";
  AdaptedE4m3 adapted;
  const at::Tensor grad = normal({96, kOut}, 9, at::kBFloat16, at::kCUDA);
  const auto pass = [&](bool on) {
    set_fp8_products(*adapted.model, on);
    adapted.parameters.flat_grad().zero_();
    const at::Tensor x = normal({96, kIn}, 1, at::kBFloat16, at::kCUDA).requires_grad_();
    const at::Tensor residual = normal({96, kOut}, 2, at::kBFloat16, at::kCUDA);
    const at::Tensor y = adapted.model->layer->forward_add(x, residual);
    y.backward(grad);
    return std::vector<at::Tensor>{y.detach(), x.grad(), adapted.parameters.flat_grad().clone()};
  };
  const std::vector<at::Tensor> wide = pass(false), narrow = pass(true), again = pass(true);
  for (size_t i = 0; i < narrow.size(); ++i) expect_same_bits(narrow[i], again[i], cat("result ", i));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_GT(relative(narrow[i], wide[i]), 1e-3) << i << ": nothing was rounded";
    EXPECT_LE(relative(narrow[i], wide[i]), 0.06) << i;
  }
  expect_same_bits(narrow[2], wide[2], "gradients of A and B");
}

}  // namespace
}  // namespace hrm::nn

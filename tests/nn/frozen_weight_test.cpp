// Frozen layers that are held as NF4 or in 8 bits: what they compute is what the same layers with the dequantised
// weights compute, to the bit, with adapters and without.
#include "hrm/nn/frozen_weight.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "hrm/base/error.h"
#include "hrm/nn/lora.h"
#include "support/expect_error.h"
#include "support/random.h"

namespace hrm::nn {
namespace {

using test::expect_error;
using test::numbers;

struct TwoFrozenLayers : torch::nn::Module, HasAdaptableLinears {
  explicit TwoFrozenLayers(WeightFormat format) {
    first = register_module("first", std::make_shared<Linear>(24, 40, at::kCPU, /*bias=*/false, format));
    second = register_module("second", std::make_shared<Linear>(40, 24, at::kCPU, /*bias=*/false, format));
  }
  std::vector<AdaptableLinear> adaptable_linears() override {
    return {{first, {{"a", 16}, {"b", 4}, {"c", 20}}}, {second, {{"d", 24}}}};
  }
  at::Tensor forward(const at::Tensor& x) { return second->forward_add(first->forward(x), x); }

  std::shared_ptr<Linear> first, second;
};

constexpr WeightFormat kFormats[] = {WeightFormat::nf4, WeightFormat::fp8, WeightFormat::int8};

at::Tensor dequantised(const at::Tensor& values, WeightFormat format) {
  Linear layer(values.size(1), values.size(0), at::kCPU, /*bias=*/false, format);
  layer.hold_quantized(values, "weight");
  return layer.dequantized(at::kFloat);
}

// Quantised, or with the values that the stored numbers of the format `of` stand for.
struct AdaptedFrozen {
  std::shared_ptr<TwoFrozenLayers> model;
  std::unique_ptr<LoraSet> set;
  ParameterSet parameters;

  AdaptedFrozen(WeightFormat format, const std::vector<std::string>& targets, at::ScalarType dtype, double dropout = 0,
                WeightFormat of = WeightFormat::nf4)
      : model(std::make_shared<TwoFrozenLayers>(format)) {
    set = std::make_unique<LoraSet>(
        *model, LoraOptions{.rank = 2, .alpha = 6, .dropout = dropout, .targets = targets, .seed = 5}, at::kCPU);
    init_parameters(*model, 3);
    const at::NoGradGuard no_grad;
    uint64_t seed = 20;
    for (const LoraAdapter::Pair& pair : set->pairs()) pair.B.copy_(numbers(pair.B.sizes(), ++seed));
    for (Linear* linear : {model->first.get(), model->second.get()}) {
      const at::Tensor values = numbers(linear->weight().sizes(), ++seed);
      if (is_quantized(format)) {
        linear->hold_quantized(values, "weight");
      } else {
        linear->weight().copy_(dequantised(values, of));
      }
    }
    keep_frozen_as(*model, dtype);
    share_quantized_workspace(*model, dtype);
    parameters.build(*model, dtype);
  }
};

void expect_same(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.defined(), b.defined()) << what;
  if (a.defined()) {
    EXPECT_TRUE(at::equal(a, b)) << what << ": " << (a - b).abs().max().item<float>();
  }
}

class QuantizedWeight : public ::testing::TestWithParam<WeightFormat> {};
INSTANTIATE_TEST_SUITE_P(All, QuantizedWeight, ::testing::ValuesIn(kFormats),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(QuantizedWeight, IsItsDequantisedWeightsInBothPasses) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::vector<std::string>& targets :
         std::vector<std::vector<std::string>>{{"a", "c", "d"}, {"b"}, {"d"}}) {
      for (const double dropout : {0.0, 0.4}) {
        const std::string what = cat(targets.front(), " ", dtype, " ", dropout);
        AdaptedFrozen held(GetParam(), targets, dtype, dropout),
            plain(WeightFormat::f32, targets, dtype, dropout, GetParam());
        const auto pass = [&](AdaptedFrozen& adapted) {
          at::Tensor x = numbers({7, 24}, 1).to(dtype).requires_grad_();
          const at::Tensor y = adapted.model->forward(x);
          // The backward pass reads codes, not what the workspace held when the forward pass was through.
          if (is_quantized(adapted.model->first->format())) {
            adapted.model->first->frozen_weight().weight.fill_(std::numeric_limits<float>::quiet_NaN());
          }
          y.backward(numbers({7, 24}, 9).to(dtype));
          return std::vector<at::Tensor>{y.detach(), x.grad(), adapted.parameters.flat_grad()};
        };
        const std::vector<at::Tensor> a = pass(held), b = pass(plain);
        expect_same(a[0], b[0], what + ", y");
        expect_same(a[1], b[1], what + ", gradient of x");
        expect_same(a[2], b[2], what + ", gradients of A and B");
        EXPECT_GT(a[2].abs().sum().item<float>(), 0);
        const at::NoGradGuard no_grad;
        const at::Tensor x = numbers({5, 24}, 2).to(dtype);
        expect_same(held.model->forward(x), plain.model->forward(x), what + ", without gradients");
        const WithLoraMode off_a(*held.set, LoraMode::off), off_b(*plain.set, LoraMode::off);
        expect_same(held.model->forward(x), plain.model->forward(x), what + ", switched off");
      }
    }
  }
}

// The choice of 8-bit products travels with the weight, also to the backward pass, and only e4m3 weights have it.
TEST(FrozenWeight, KeepsTheChoiceOfProducts) {
  for (const WeightFormat format : kFormats) {
    AdaptedFrozen held(format, {"a"}, at::kFloat);
    const Linear& layer = *held.model->first;
    EXPECT_FALSE(layer.frozen_weight().fp8_products) << name(format);
    for (const bool on : {true, false}) {
      set_fp8_products(*held.model, on);
      const FrozenWeight weight = layer.frozen_weight(), back = FrozenWeight::from_ivalue(weight.to_ivalue());
      EXPECT_EQ(weight.fp8_products, on && format == WeightFormat::fp8) << name(format);
      EXPECT_EQ(back.fp8_products, weight.fp8_products) << name(format);
      EXPECT_EQ(back.weight.data_ptr(), weight.weight.data_ptr());
      const at::Tensor grad = numbers({3, 40}, 7);
      expect_same(back.grad_x(grad), at::matmul(grad, layer.dequantized(at::kFloat)), name(format));
    }
  }
}

// Where nothing below needs a gradient, no product is done for one, and none is asked for.
TEST(FrozenWeight, InputsWithoutGradient) {
  AdaptedFrozen held(WeightFormat::nf4, {"d"}, at::kFloat), plain(WeightFormat::f32, {"d"}, at::kFloat);
  const at::Tensor x = numbers({7, 24}, 1);
  for (AdaptedFrozen* adapted : {&held, &plain}) adapted->model->forward(x).backward(numbers({7, 24}, 9));
  expect_same(held.parameters.flat_grad(), plain.parameters.flat_grad(), "gradients of A and B");
  EXPECT_FALSE(held.model->first->forward(x).requires_grad());
}

TEST_P(QuantizedWeight, IsNeverMerged) {
  AdaptedFrozen held(GetParam(), {"a", "d"}, at::kFloat),
      plain(WeightFormat::f32, {"a", "d"}, at::kFloat, 0, GetParam());
  const at::NoGradGuard no_grad;
  const at::Tensor x = numbers({5, 24}, 2), beside = held.model->forward(x);
  for (AdaptedFrozen* adapted : {&held, &plain}) adapted->set->merge();
  {
    const WithLoraMode merged(*held.set, LoraMode::merged);
    expect_same(held.model->forward(x), beside, "merged is the adapter beside it");
    EXPECT_NE(held.model->first->adapter(), nullptr);
  }
  for (const char* name : {"first.weight", "second.weight"}) {
    expect_same(held.set->merged_weight(name), plain.set->merged_weight(name), name);
  }
  EXPECT_FALSE(held.set->merged_weight("third.weight").defined());
  expect_same(held.model->forward(x), beside, "after merged weights were asked for");
}

TEST(FrozenWeight, OneWorkspaceAndWhatAllTakes) {
  AdaptedFrozen held(WeightFormat::nf4, {"a"}, at::kBFloat16);
  const at::Tensor first = held.model->first->frozen_weight().weight,
                   second = held.model->second->frozen_weight().weight;
  EXPECT_EQ(first.data_ptr(), second.data_ptr());
  EXPECT_EQ(first.scalar_type(), at::kBFloat16);
  const QuantizedMemory memory = quantized_memory(*held.model);
  EXPECT_EQ(memory.elements, 2 * 960);
  // Of each: 480 bytes of codes, 15 magnitudes, one scale and one mean.
  EXPECT_EQ(memory.bytes, 2 * (480 + 15 + 4 + 4));
  EXPECT_EQ(memory.workspace, 2 * 960);
  EXPECT_EQ(quantized_memory(*AdaptedFrozen(WeightFormat::f32, {"a"}, at::kFloat).model).elements, 0);
  // The parameter is a name and a shape.
  const at::Tensor weight = held.model->named_parameters()["first.weight"];
  EXPECT_TRUE(weight.is_meta());
  EXPECT_FALSE(weight.requires_grad());
  EXPECT_EQ(weight.sizes(), at::IntArrayRef({40, 24}));
  const std::vector<QuantizedLayer> layers = quantized_layers(*held.model);
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[1].weight, "second.weight");
  held.model->forward(numbers({3, 24}, 1).to(at::kBFloat16));
  EXPECT_EQ(held.model->first->frozen_weight().weight.data_ptr(), first.data_ptr())
      << "captured steps know the address";
}

TEST_P(QuantizedWeight, NamesWhatDoesNotFit) {
  TwoFrozenLayers model(GetParam());
  expect_error(ExitCode::unexpected, {cat("'first.weight' has no ", name(GetParam()), " weight")},
               [&] { share_quantized_workspace(model, at::kFloat); });
  at::Tensor weight = at::ones({40, 24});
  weight[3][4] = std::numeric_limits<float>::infinity();
  expect_error(ExitCode::checkpoint, {"'q' contains values that are not finite", "hf.quantize"},
               [&] { model.first->hold_quantized(weight, "q"); });
  weight[3][4] = std::numeric_limits<float>::quiet_NaN();
  expect_error(ExitCode::checkpoint, {"'q' contains values that are not finite"},
               [&] { model.first->hold_quantized(weight, "q"); });
  expect_error(ExitCode::unexpected, {"wrong shape"}, [&] { model.first->hold_quantized(at::ones({2, 2}), "q"); });
  expect_error(ExitCode::unexpected, {"no compute weight"}, [&] { model.first->compute_weight(); });
}

// A bias is added to the product of a quantised weight, with a residual and beside an adapter, too, and may be trained.
TEST_P(QuantizedWeight, ABiasIsAdded) {
  const auto biased = std::make_shared<Linear>(24, 40, at::kCPU, /*bias=*/true, GetParam());
  const auto plain = std::make_shared<Linear>(24, 40, at::kCPU, /*bias=*/false, GetParam());
  for (const auto& layer : {biased, plain}) {
    layer->hold_quantized(numbers({40, 24}, 3), "weight");
    layer->set_workspace(at::empty({40, 24}));
  }
  {
    const at::NoGradGuard no_grad;
    biased->bias().copy_(numbers({40}, 4));
  }
  EXPECT_TRUE(biased->needs_forward());
  const at::Tensor x = numbers({3, 24}, 1), residual = numbers({3, 40}, 2);
  const at::Tensor y = biased->forward(x);
  EXPECT_TRUE(at::equal(y, plain->forward(x) + biased->bias()));
  EXPECT_TRUE(at::allclose(biased->forward_add(x, residual), y + residual));
  y.sum().backward();
  EXPECT_TRUE(at::equal(biased->bias().grad(), at::full({40}, 3.0)));
}

// In 8 bits, what other programs have quantised is kept as it is.
TEST(FrozenWeight, HoldsWeightsThatAreIn8BitsAlready) {
  const ops::Weight8 weight = ops::quantize_weight8(numbers({40, 24}, 3), at::kChar);
  Linear layer(24, 40, at::kCPU, /*bias=*/false, WeightFormat::int8);
  layer.hold_weight8(weight, "weight");
  EXPECT_TRUE(at::equal(layer.dequantized(at::kFloat), ops::dequantize_weight8(weight, at::kFloat)));
  EXPECT_EQ(layer.quantized_bytes(), 40 * 24 + 40 * 4);
  Linear other(24, 40, at::kCPU, /*bias=*/false, WeightFormat::fp8), nf4(24, 40, at::kCPU, false, WeightFormat::nf4);
  for (Linear* wrong : {&other, &nf4}) {
    expect_error(ExitCode::unexpected, {"'q' has another shape or format"}, [&] { wrong->hold_weight8(weight, "q"); });
  }
  ops::Weight8 infinite = {weight.values, weight.scales.clone()};
  infinite.scales[3] = std::numeric_limits<float>::infinity();
  expect_error(ExitCode::checkpoint, {"'q' contains values that are not finite", "int8", "hf.quantize"},
               [&] { layer.hold_weight8(infinite, "q"); });
}

}  // namespace
}  // namespace hrm::nn

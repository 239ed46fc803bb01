// Frozen layers that are held as NF4: what they compute is what the same layers with the dequantised weights compute,
// to the bit, with adapters and without.
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

// As NF4, or with the values that the codes of the other stand for.
struct AdaptedFrozen {
  std::shared_ptr<TwoFrozenLayers> model;
  std::unique_ptr<LoraSet> set;
  ParameterSet parameters;

  AdaptedFrozen(WeightFormat format, const std::vector<std::string>& targets, at::ScalarType dtype, double dropout = 0)
      : model(std::make_shared<TwoFrozenLayers>(format)) {
    set = std::make_unique<LoraSet>(
        *model, LoraOptions{.rank = 2, .alpha = 6, .dropout = dropout, .targets = targets, .seed = 5}, at::kCPU);
    init_parameters(*model, 3);
    const at::NoGradGuard no_grad;
    uint64_t seed = 20;
    for (const LoraAdapter::Pair& pair : set->pairs()) pair.B.copy_(numbers(pair.B.sizes(), ++seed));
    for (Linear* linear : {model->first.get(), model->second.get()}) {
      const at::Tensor values = numbers(linear->weight().sizes(), ++seed);
      if (format == WeightFormat::nf4) {
        linear->hold_nf4(values, "weight");
      } else {
        linear->weight().copy_(ops::nf4_dequantize(ops::nf4_quantize(values), values.sizes(), at::kFloat));
      }
    }
    keep_frozen_as(*model, dtype);
    share_nf4_workspace(*model, dtype);
    parameters.build(*model, dtype);
  }
};

void expect_same(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.defined(), b.defined()) << what;
  if (a.defined()) {
    EXPECT_TRUE(at::equal(a, b)) << what << ": " << (a - b).abs().max().item<float>();
  }
}

TEST(FrozenWeight, Nf4IsItsDequantisedWeightsInBothPasses) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::vector<std::string>& targets :
         std::vector<std::vector<std::string>>{{"a", "c", "d"}, {"b"}, {"d"}}) {
      for (const double dropout : {0.0, 0.4}) {
        const std::string what = cat(targets.front(), " ", dtype, " ", dropout);
        AdaptedFrozen nf4(WeightFormat::nf4, targets, dtype, dropout),
            plain(WeightFormat::f32, targets, dtype, dropout);
        const auto pass = [&](AdaptedFrozen& adapted) {
          at::Tensor x = numbers({7, 24}, 1).to(dtype).requires_grad_();
          const at::Tensor y = adapted.model->forward(x);
          // The backward pass reads codes, not what the workspace held when the forward pass was through.
          if (adapted.model->first->format() == WeightFormat::nf4) {
            adapted.model->first->frozen_weight().weight.fill_(std::numeric_limits<float>::quiet_NaN());
          }
          y.backward(numbers({7, 24}, 9).to(dtype));
          return std::vector<at::Tensor>{y.detach(), x.grad(), adapted.parameters.flat_grad()};
        };
        const std::vector<at::Tensor> a = pass(nf4), b = pass(plain);
        expect_same(a[0], b[0], what + ", y");
        expect_same(a[1], b[1], what + ", gradient of x");
        expect_same(a[2], b[2], what + ", gradients of A and B");
        EXPECT_GT(a[2].abs().sum().item<float>(), 0);
        const at::NoGradGuard no_grad;
        const at::Tensor x = numbers({5, 24}, 2).to(dtype);
        expect_same(nf4.model->forward(x), plain.model->forward(x), what + ", without gradients");
        const WithLoraMode off_a(*nf4.set, LoraMode::off), off_b(*plain.set, LoraMode::off);
        expect_same(nf4.model->forward(x), plain.model->forward(x), what + ", switched off");
      }
    }
  }
}

// Where nothing below needs a gradient, no product is done for one, and none is asked for.
TEST(FrozenWeight, InputsWithoutGradient) {
  AdaptedFrozen nf4(WeightFormat::nf4, {"d"}, at::kFloat), plain(WeightFormat::f32, {"d"}, at::kFloat);
  const at::Tensor x = numbers({7, 24}, 1);
  for (AdaptedFrozen* adapted : {&nf4, &plain}) adapted->model->forward(x).backward(numbers({7, 24}, 9));
  expect_same(nf4.parameters.flat_grad(), plain.parameters.flat_grad(), "gradients of A and B");
  EXPECT_FALSE(nf4.model->first->forward(x).requires_grad());
}

TEST(FrozenWeight, Nf4IsNeverMerged) {
  AdaptedFrozen nf4(WeightFormat::nf4, {"a", "d"}, at::kFloat), plain(WeightFormat::f32, {"a", "d"}, at::kFloat);
  const at::NoGradGuard no_grad;
  const at::Tensor x = numbers({5, 24}, 2), beside = nf4.model->forward(x);
  for (AdaptedFrozen* adapted : {&nf4, &plain}) adapted->set->merge();
  {
    const WithLoraMode merged(*nf4.set, LoraMode::merged);
    expect_same(nf4.model->forward(x), beside, "merged is the adapter beside it");
    EXPECT_NE(nf4.model->first->adapter(), nullptr);
  }
  for (const char* name : {"first.weight", "second.weight"}) {
    expect_same(nf4.set->merged_weight(name), plain.set->merged_weight(name), name);
  }
  EXPECT_FALSE(nf4.set->merged_weight("third.weight").defined());
  expect_same(nf4.model->forward(x), beside, "after merged weights were asked for");
}

TEST(FrozenWeight, OneWorkspaceAndWhatAllTakes) {
  AdaptedFrozen nf4(WeightFormat::nf4, {"a"}, at::kBFloat16);
  const at::Tensor first = nf4.model->first->frozen_weight().weight, second = nf4.model->second->frozen_weight().weight;
  EXPECT_EQ(first.data_ptr(), second.data_ptr());
  EXPECT_EQ(first.scalar_type(), at::kBFloat16);
  const Nf4Memory memory = nf4_memory(*nf4.model);
  EXPECT_EQ(memory.elements, 2 * 960);
  // Of each: 480 bytes of codes, 15 magnitudes, one scale and one mean.
  EXPECT_EQ(memory.bytes, 2 * (480 + 15 + 4 + 4));
  EXPECT_EQ(memory.workspace, 2 * 960);
  EXPECT_EQ(nf4_memory(*AdaptedFrozen(WeightFormat::f32, {"a"}, at::kFloat).model).elements, 0);
  // The parameter is a name and a shape.
  const at::Tensor weight = nf4.model->named_parameters()["first.weight"];
  EXPECT_TRUE(weight.is_meta());
  EXPECT_FALSE(weight.requires_grad());
  EXPECT_EQ(weight.sizes(), at::IntArrayRef({40, 24}));
  const std::vector<Nf4Layer> layers = nf4_layers(*nf4.model);
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[1].weight, "second.weight");
  nf4.model->forward(numbers({3, 24}, 1).to(at::kBFloat16));
  EXPECT_EQ(nf4.model->first->frozen_weight().weight.data_ptr(), first.data_ptr()) << "captured steps know the address";
}

TEST(FrozenWeight, NamesWhatDoesNotFit) {
  TwoFrozenLayers model(WeightFormat::nf4);
  expect_error(ExitCode::unexpected, {"'first.weight' has no NF4 weight"},
               [&] { share_nf4_workspace(model, at::kFloat); });
  at::Tensor weight = at::ones({40, 24});
  weight[3][4] = std::numeric_limits<float>::infinity();
  expect_error(ExitCode::checkpoint, {"'q' contains values that are not finite", "hf.quantize"},
               [&] { model.first->hold_nf4(weight, "q"); });
  weight[3][4] = std::numeric_limits<float>::quiet_NaN();
  expect_error(ExitCode::checkpoint, {"'q' contains values that are not finite"},
               [&] { model.first->hold_nf4(weight, "q"); });
  expect_error(ExitCode::unexpected, {"wrong shape"}, [&] { model.first->hold_nf4(at::ones({2, 2}), "q"); });
  expect_error(ExitCode::unexpected, {"no compute weight"}, [&] { model.first->compute_weight(); });
}

// A bias is added to the product of an NF4 weight, with a residual and beside an adapter, too, and may be trained.
TEST(FrozenWeight, ABiasIsAdded) {
  const auto biased = std::make_shared<Linear>(24, 40, at::kCPU, /*bias=*/true, WeightFormat::nf4);
  const auto plain = std::make_shared<Linear>(24, 40, at::kCPU, /*bias=*/false, WeightFormat::nf4);
  for (const auto& layer : {biased, plain}) {
    layer->hold_nf4(numbers({40, 24}, 3), "weight");
    layer->set_nf4_workspace(at::empty({40, 24}));
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

}  // namespace
}  // namespace hrm::nn

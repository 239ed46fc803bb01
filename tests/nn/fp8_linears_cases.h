#pragma once
// A block of a decoder whose linear layers run in 8 bits, against itself in the compute dtype, on any device.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/nn/fp8_linears.h"
#include "hrm/nn/init.h"
#include "hrm/nn/transformer_block.h"

namespace hrm::nn::testing {

inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor want = b.to(at::kCPU, at::kDouble);
  return (a.to(at::kCPU, at::kDouble) - want).norm().item<double>() / (want.norm().item<double>() + 1e-30);
}

inline double cosine(const at::Tensor& a, const at::Tensor& b) {
  const auto flat = [](const at::Tensor& t) { return t.to(at::kCPU, at::kDouble).flatten(); };
  return at::cosine_similarity(flat(a), flat(b), 0).item<double>();
}

// layers.0 and layers.1: grouped attention and a SwiGLU.
struct Fp8Blocks : torch::nn::Module {
  explicit Fp8Blocks(at::Device device = at::kCPU, at::ScalarType compute = at::kFloat, bool recompute = false)
      : device(device), compute(compute) {
    const auto list = register_module("layers", std::make_shared<torch::nn::Module>());
    const TransformerBlockOptions options{
        .attention = {.width = kWidth, .heads = 4, .kv_heads = 2, .head_dim = 32, .qk_norm = true},
        .recompute = recompute};
    for (int i = 0; i < 2; ++i) {
      blocks.push_back(list->register_module(
          std::to_string(i), std::make_shared<TransformerBlock>(
                                 options, std::make_shared<SwigluFeedForward>(kWidth, 256, device), device)));
    }
    const at::NoGradGuard no_grad;
    auto generator = at::detail::createCPUGenerator(7);
    for (const auto& item : named_parameters()) {
      at::Tensor weight = item.value();
      if (weight.dim() == 1) {
        weight.fill_(1);
        continue;
      }
      // What writes to the residual stream is smaller, as in models::Decoder.
      const bool writes = item.key().ends_with("o_proj.weight") || item.key().ends_with("down_proj.weight");
      const double scale = (writes ? 0.5 : 1) / std::sqrt(static_cast<double>(weight.size(1)));
      weight.copy_(at::randn(weight.sizes(), generator, at::kFloat) * scale);
    }
    parameters.build(*this, compute);
    rotary = make_rotary_table(kLength, 32, 10000, device);
  }

  static constexpr int64_t kWidth = 128, kLength = 24;

  std::vector<NamedLinear> linears() {
    std::vector<NamedLinear> found;
    for (const auto& item : named_modules("", false)) {
      if (auto* linear = dynamic_cast<Linear*>(item.value().get())) found.push_back({item.key(), linear});
    }
    return found;
  }

  at::Tensor input(double factor = 1) const {
    auto generator = at::detail::createCPUGenerator(5);
    return (at::randn({2, kLength, kWidth}, generator, at::kFloat) * factor).to(device, compute);
  }

  at::Tensor forward(const at::Tensor& x) const {
    at::Tensor h = x;
    for (const auto& block : blocks) h = block->forward(h, {.rotary = rotary});
    return h;
  }

  struct Result {
    at::Tensor y, grad_x;
    std::vector<at::Tensor> grads;  // of all parameters
  };
  // A pass and its backward pass; gradients are added to those that are there.
  Result pass(const at::Tensor& input) {
    const at::Tensor x = input.detach().clone().requires_grad_();
    auto generator = at::detail::createCPUGenerator(9);
    const at::Tensor grad = (at::randn(x.sizes(), generator, at::kFloat) * 1e-3).to(device, compute);
    const at::Tensor y = forward(x);
    y.backward(grad);
    Result out{y.detach(), x.grad(), {}};
    for (const Parameter& p : parameters.all()) out.grads.push_back(p.master.grad().clone());
    return out;
  }

  at::Device device;
  at::ScalarType compute;
  std::vector<std::shared_ptr<TransformerBlock>> blocks;
  ParameterSet parameters;
  RotaryTable rotary;
};

// A step with one pass, or with several that add up.
inline Fp8Blocks::Result fp8_step(Fp8Blocks& model, Fp8Linears& fp8, const at::Tensor& x, bool warm_up = false,
                                  int passes = 1) {
  model.parameters.zero_grad();
  fp8.begin_step(warm_up);
  fp8.quantize_weights();
  Fp8Blocks::Result result;
  for (int i = 0; i < passes; ++i) result = model.pass(x);
  fp8.update_scales();
  fp8.count_step();
  return result;
}

// Gradients of whole blocks: of the input and of each weight.
inline void check_fp8_blocks(at::Device device, at::ScalarType compute, const Fp8LinearsOptions& options) {
  const std::string what = cat(compute, options.e5m2 ? " e5m2" : " e4m3",
                               options.rows      ? " rows"
                               : options.current ? " current"
                                                 : " delayed",
                               options.skip.empty() ? "" : " without ", options.skip);
  Fp8Blocks model(device, compute);
  const at::Tensor x = model.input();
  const Fp8Blocks::Result want = model.pass(x);
  Fp8Linears fp8(model.linears(), options);
  const auto expect_near = [&](const Fp8Blocks::Result& got, const std::string& step) {
    EXPECT_LT(relative_error(got.y, want.y), 0.06) << what << step;
    EXPECT_GT(relative_error(got.y, want.y), 0.001) << what << step << ": this is not in 8 bits";
    // Of one block, or of two with the finer format.
    const bool coarse = options.e5m2 && options.skip.empty();
    EXPECT_LT(relative_error(got.grad_x, want.grad_x), coarse ? 0.08 : 0.06) << what << step;
    EXPECT_GT(cosine(got.grad_x, want.grad_x), coarse ? 0.997 : 0.998) << what << step;
    // Values of e5m2 are rounded twice as much as those of e4m3, and a weight's gradient is behind several layers.
    const double allowed = options.e5m2 ? 0.16 : 0.12;
    for (size_t i = 0; i < want.grads.size(); ++i) {
      const std::string name = cat(what, step, ": ", model.parameters.all()[i].name);
      EXPECT_LT(relative_error(got.grads[i], want.grads[i]), allowed) << name;
      EXPECT_GT(cosine(got.grads[i], want.grads[i]), options.e5m2 ? 0.99 : 0.993) << name;
    }
  };
  expect_near(fp8_step(model, fp8, x), ", first step");
  expect_near(fp8_step(model, fp8, x), ", second step");
  EXPECT_EQ(fp8.mode(), options.rows ? Fp8Mode::rows : options.current ? Fp8Mode::current : Fp8Mode::delayed);
  // Nothing of an evaluation is in 8 bits.
  const at::NoGradGuard no_grad;
  const at::Tensor slots = fp8.x_slots().clone(), y = model.forward(x);
  EXPECT_TRUE(at::equal(fp8.x_slots(), slots)) << what;
  EXPECT_LT(relative_error(y, want.y), compute == at::kFloat ? 1e-5 : 0.01) << what;
}

// What wide layers make again is what narrow ones keep.
inline void check_wide_layers(at::Device device, at::ScalarType compute, bool current) {
  const auto run = [&](int64_t wide_weight) {
    Fp8Blocks model(device, compute);
    Fp8Linears fp8(model.linears(), {.current = current, .wide_weight = wide_weight});
    std::vector<at::Tensor> results;
    for (int step = 0; step < 3; ++step) {
      const Fp8Blocks::Result result = fp8_step(model, fp8, model.input());
      results.insert(results.end(), {result.y, result.grad_x, fp8.x_slots().clone(), fp8.gradient_slots().clone()});
      results.insert(results.end(), result.grads.begin(), result.grads.end());
    }
    return results;
  };
  const std::vector<at::Tensor> wide = run(1), narrow = run(int64_t{1} << 40);
  for (size_t i = 0; i < narrow.size(); ++i) {
    const std::string what = cat(compute, current ? " current" : " delayed", ", result ", i);
    // The gradient of a GPU's attention may differ from run to run.
    if (device.is_cpu()) {
      EXPECT_TRUE(at::equal(wide[i], narrow[i])) << what;
    } else {
      EXPECT_LT(relative_error(wide[i], narrow[i]), 0.01) << what;
    }
  }
}

// The halves of a block in 8 bits, each as one function, against their layers one by one: the same numbers, but for
// what kernels round otherwise.
inline void check_fp8_halves(at::Device device, at::ScalarType compute, bool current, bool qk_norm) {
  const std::string what = cat(compute, current ? " current" : " delayed", qk_norm ? " with norms of heads" : "");
  static constexpr int64_t kWidth = 128, kLength = 24;
  struct Half : torch::nn::Module {
    Half(at::Device device, at::ScalarType compute, bool qk_norm) {
      norm = register_module("norm", std::make_shared<RmsNorm>(kWidth, 1e-5, device));
      attention = register_module(
          "attention",
          std::make_shared<CausalAttention>(
              AttentionSizes{.width = kWidth, .heads = 4, .kv_heads = 2, .head_dim = 32, .qk_norm = qk_norm}, device));
      mlp = register_module("mlp", std::make_shared<SwigluFeedForward>(kWidth, 256, device));
      init_parameters(*this, 3);
      parameters.build(*this, compute);
    }
    std::shared_ptr<RmsNorm> norm;
    std::shared_ptr<CausalAttention> attention;
    std::shared_ptr<SwigluFeedForward> mlp;
    ParameterSet parameters;
  };
  auto generator = at::detail::createCPUGenerator(5);
  const at::Tensor input = at::randn({2, kLength, kWidth}, generator, at::kFloat).to(device, compute);
  const at::Tensor grad = (at::randn(input.sizes(), generator, at::kFloat) * 1e-3).to(device, compute);
  const AttentionPass pass{.rotary = make_rotary_table(kLength, 32, 10000, device)};
  for (const bool of_attention : {true, false}) {
    // Of the whole half, and of its parts.
    const auto run = [&](bool at_once) {
      const auto half = std::make_shared<Half>(device, compute, qk_norm);
      Linear& first = const_cast<Linear&>(of_attention ? half->attention->qkv_proj() : half->mlp->gate_up_proj());
      Linear& second = const_cast<Linear&>(of_attention ? half->attention->o_proj() : half->mlp->down_proj());
      Fp8Linears fp8({{"first", &first}, {"second", &second}}, {.current = current});
      std::vector<at::Tensor> results;
      for (int step = 0; step < 2; ++step) {
        half->parameters.zero_grad();
        fp8.begin_step(false);
        fp8.quantize_weights();
        const at::Tensor x = input.detach().clone().requires_grad_();
        at::Tensor y;
        if (of_attention && at_once) {
          y = half->attention->normed_add(*half->norm, x, pass);
        } else if (of_attention) {
          const ops::NormedStream stream = half->norm->forward_stream(x);
          y = half->attention->forward_add(stream.y, stream.x, pass);
        } else if (at_once) {
          y = half->mlp->normed_add(*half->norm, x.flatten(0, 1)).view(x.sizes());
        } else {
          const ops::NormedStream stream = half->norm->forward_stream(x.flatten(0, 1));
          y = half->mlp->forward_add(stream.y, stream.x).view(x.sizes());
        }
        y.backward(grad);
        results.insert(results.end(), {y.detach(), x.grad()});
        for (const Parameter& p : half->parameters.all()) results.push_back(p.master.grad().clone());
        results.push_back(fp8.maxima().clone());
        fp8.update_scales();
        fp8.count_step();
      }
      return results;
    };
    const std::vector<at::Tensor> whole = run(true), parts = run(false);
    ASSERT_EQ(whole.size(), parts.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_LT(relative_error(whole[i], parts[i]), device.is_cpu() && compute == at::kFloat ? 1e-6 : 0.01)
          << what << (of_attention ? " attention" : " SwiGLU") << ", result " << i;
    }
  }
}

}  // namespace hrm::nn::testing

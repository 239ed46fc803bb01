#pragma once
// Halves of blocks over frozen e4m3 weights, with adapters or without, against their layers one by one, on any device.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <string>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/nn/fp8_rows_block.h"
#include "hrm/nn/init.h"
#include "hrm/nn/lora.h"
#include "hrm/ops/fp8_rows.h"
#include "hrm/ops/swiglu.h"
#include "support/random.h"

namespace hrm::nn::testing {

// The product with an e4m3 weight and quantised rows, in both passes, made of its ops.
struct PlainRowsProduct : torch::autograd::Function<PlainRowsProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& values,
                            const at::Tensor& scales) {
    ctx->saved_data["weight"] = std::vector<at::Tensor>{values, scales};
    const auto [rows, row_scales] = ops::quantize_fp8_rows(x);
    return ops::fp8_rows_product(rows, values, row_scales, scales, x.scalar_type());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const std::vector<at::Tensor> weight = ctx->saved_data["weight"].toTensorVector();
    const auto [rows, row_scales] = ops::quantize_fp8_rows(grads[0].contiguous(), weight[1]);
    const at::Tensor transposed = weight[0].t().contiguous(),
                     ones = at::ones({transposed.size(0)}, weight[1].options());
    return {ops::fp8_rows_product(rows, transposed, row_scales, ones, grads[0].scalar_type()), at::Tensor(),
            at::Tensor()};
  }
};

struct FrozenHalves : torch::nn::Module, HasAdaptableLinears {
  static constexpr int64_t kWidth = 64, kHeads = 4, kKvHeads = 2, kHeadDim = 32, kInner = 112;
  static constexpr ops::QkvSizes kSizes{kHeads, kKvHeads, kHeadDim};

  explicit FrozenHalves(at::Device device) {
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, std::make_shared<Linear>(in, out, device, /*bias=*/false, WeightFormat::fp8));
    };
    norm = register_module("norm", std::make_shared<RmsNorm>(kWidth, 1e-6, device));
    qkv_proj = linear("qkv_proj", kWidth, (kHeads + 2 * kKvHeads) * kHeadDim);
    gate_up_proj = linear("gate_up_proj", kWidth, 2 * kInner);
    down_proj = linear("down_proj", kInner, kWidth);
  }
  std::vector<AdaptableLinear> adaptable_linears() override {
    return {
        {qkv_proj, {{"q_proj", kHeads * kHeadDim}, {"k_proj", kKvHeads * kHeadDim}, {"v_proj", kKvHeads * kHeadDim}}},
        {gate_up_proj, {{"gate_proj", kInner}, {"up_proj", kInner}}},
        {down_proj, {{"down_proj", kWidth}}}};
  }

  std::shared_ptr<RmsNorm> norm;
  std::shared_ptr<Linear> qkv_proj, gate_up_proj, down_proj;
};

struct AdaptedHalves {
  std::shared_ptr<FrozenHalves> model;
  std::unique_ptr<LoraSet> set;  // null without targets
  ParameterSet parameters;

  AdaptedHalves(at::Device device, at::ScalarType dtype, const std::vector<std::string>& targets, double dropout,
                bool trains_norm)
      : model(std::make_shared<FrozenHalves>(device)) {
    LoraOptions options{.rank = 4, .alpha = 6, .dropout = dropout, .targets = targets, .seed = 5};
    if (trains_norm) options.modules_to_save = {"norm"};
    if (!targets.empty()) set = std::make_unique<LoraSet>(*model, options, device);
    init_parameters(*model, 3);
    const at::NoGradGuard no_grad;
    uint64_t seed = 20;
    if (set) {
      for (const LoraAdapter::Pair& pair : set->pairs()) pair.B.copy_(test::numbers(pair.B.sizes(), ++seed) / 10);
    }
    for (Linear* linear : {model->qkv_proj.get(), model->gate_up_proj.get(), model->down_proj.get()}) {
      linear->hold_quantized(test::numbers(linear->weight().sizes(), ++seed) / 8, "weight");
    }
    keep_frozen_as(*model, dtype);
    share_quantized_workspace(*model, dtype);
    set_fp8_products(*model, true);
    parameters.build(*model, dtype);
  }
};

// One layer of the oracle: the adapter in plain ATen, with its gradients by autograd.
inline at::Tensor plain_layer(const at::Tensor& x, const Linear& linear) {
  const std::vector<int64_t> sizes = x.sizes().vec();
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  at::Tensor y = PlainRowsProduct::apply(rows, linear.weight8().values, linear.weight8().scales);
  if (const LoraAdapter* adapter = linear.adapter()) {
    const at::Tensor u = at::linear(rows, adapter->A().weight()) * lora_scale(adapter->shared()->options);
    std::vector<at::Tensor> parts;
    int64_t at = 0, i = 0;
    for (const ops::LoraSlice& s : adapter->slices()) {
      parts.push_back(y.narrow(1, at, s.out - at));
      const int64_t rank = adapter->B().weight().size(1);
      parts.push_back(y.narrow(1, s.out, s.rows) +
                      at::linear(u.narrow(1, rank * i++, rank), adapter->B().weight().narrow(0, s.first, s.rows)));
      at = s.out + s.rows;
    }
    parts.push_back(y.narrow(1, at, y.size(1) - at));
    y = at::cat(parts, 1);
  }
  std::vector<int64_t> out = sizes;
  out.back() = y.size(1);
  return y.view(out);
}

// A pass over both halves and its gradients: y, the gradient of x, those of all parameters.
template <class Layer>
std::vector<at::Tensor> plain_halves(AdaptedHalves& halves, const at::Tensor& input, const ops::QkvHeadOptions& options,
                                     const at::Tensor& grad, const Layer& layer) {
  const FrozenHalves& m = *halves.model;
  halves.parameters.flat_grad().zero_();
  const at::Tensor x = input.detach().clone().requires_grad_();
  const ops::NormedStream first = m.norm->forward_stream(x);
  const ops::QkvHeads heads = ops::qkv_heads_(layer(first.y, *m.qkv_proj), FrozenHalves::kSizes, options);
  const at::Tensor h =
      first.x + (heads.q.mean(2).narrow(2, 0, 32) * heads.k.mean(2) + heads.v.mean(2)).repeat({1, 1, 2});
  const ops::NormedStream second = m.norm->forward_stream(h);
  const at::Tensor y = second.x + layer(ops::swiglu(layer(second.y, *m.gate_up_proj)), *m.down_proj);
  y.backward(grad);
  return {y.detach(), x.grad(), halves.parameters.flat_grad().clone()};
}

inline std::vector<at::Tensor> fused_halves(AdaptedHalves& halves, const at::Tensor& input,
                                            const ops::QkvHeadOptions& options, const at::Tensor& grad,
                                            bool separate = false) {
  const FrozenHalves& m = *halves.model;
  halves.parameters.flat_grad().zero_();
  const at::Tensor x = input.detach().clone().requires_grad_();
  at::Tensor stream;
  ops::QkvHeads heads;
  if (separate) {
    const ops::NormedStream first = rows_normed_linear(x, *m.norm, *m.qkv_proj);
    stream = first.x;
    heads = ops::qkv_heads_(first.y, FrozenHalves::kSizes, options);
  } else {
    const RowsHeads first = rows_qkv_heads(x, *m.norm, *m.qkv_proj, FrozenHalves::kSizes, options);
    stream = first.x;
    heads = first.heads;
  }
  const at::Tensor h =
      stream + (heads.q.mean(2).narrow(2, 0, 32) * heads.k.mean(2) + heads.v.mean(2)).repeat({1, 1, 2});
  const at::Tensor y = rows_swiglu_add(h, *m.norm, *m.gate_up_proj, *m.down_proj);
  y.backward(grad);
  return {y.detach(), x.grad(), halves.parameters.flat_grad().clone()};
}

inline ops::QkvHeadOptions head_options(bool normed, int64_t length, at::Device device) {
  const at::Tensor angle = test::numbers({length, FrozenHalves::kHeadDim / 2}, 9).to(device) * 3;
  ops::QkvHeadOptions options{.cos = angle.cos(), .sin = angle.sin()};
  if (normed) {
    options.q_weight = (test::numbers({FrozenHalves::kHeadDim}, 10) + 1).to(device);
    options.k_weight = (test::numbers({FrozenHalves::kHeadDim}, 11) + 1).to(device);
  }
  return options;
}

}  // namespace hrm::nn::testing

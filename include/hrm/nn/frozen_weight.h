#pragma once
// Weights of frozen linear layers as GEMMs read them, and storage of a model's weights in a quantised format only: NF4
// (QLoRA, arXiv 2305.14314; format: hrm/ops/nf4.h), or 8 bits with a scale for each output (hrm/ops/weight8.h).

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hrm/ops/fp8_rows_block.h"
#include "hrm/ops/nf4.h"
#include "hrm/ops/weight8.h"

namespace hrm::nn {

class Linear;

struct FrozenWeight {
  // (out, in) in the compute dtype; of a quantised weight the start of the workspace, which read() overwrites
  at::Tensor weight;
  ops::Nf4Tensor nf4 = {};    // undefined unless the weight is NF4
  ops::Weight8 weight8 = {};  // undefined unless the weight is in 8 bits
  bool fp8_products = false;  // as in ops::linear_weight8

  // The weight for a GEMM. A quantised weight is dequantised into the workspace and stays valid only until the next
  // read() of any layer of the model. Launch the GEMM at once and on the same stream.
  const at::Tensor& read() const;

  // x weight^T (+ residual), without a gradient. A few rows read a quantised weight as it is, and with fp8_products
  // many rows are multiplied in 8 bits where the device can (ops::linear_weight8).
  at::Tensor product(const at::Tensor& x, const std::optional<at::Tensor>& residual) const;
  // grad weight, the gradient of product() to x.
  at::Tensor grad_x(const at::Tensor& grad) const;

  // The same for a weight in e4m3 and rows in 8 bits (hrm/ops/fp8_rows_block.h), with results of `dtype`. The columns
  // of grad.values were multiplied by the weight's scales.
  at::Tensor product(const ops::Fp8RowsBeside& x, at::ScalarType dtype,
                     const std::optional<at::Tensor>& residual) const;
  at::Tensor grad_x(const ops::Fp8RowsBeside& grad, at::ScalarType dtype) const;

  // For autograd nodes, which then keep the stored form and the workspace but no dequantised copy. The workspace must
  // not be a saved variable, because it is overwritten between the passes.
  c10::IValue to_ivalue() const;
  static FrozenWeight from_ivalue(const c10::IValue& value);
};

// x weight^T (+ residual), (..., in) -> (..., out). Only x and residual get gradients. Saves nothing but the weight in
// its stored form. Deterministic; can be captured.
at::Tensor frozen_linear(const at::Tensor& x, const FrozenWeight& weight,
                         const std::optional<at::Tensor>& residual = {});

// The layers of a model that were constructed with a quantised format, with their parameter names, in module-tree
// order.
struct QuantizedLayer {
  std::string weight;  // "model.layers.0.self_attn.qkv_proj.weight"
  std::shared_ptr<Linear> linear;
};
std::vector<QuantizedLayer> quantized_layers(const torch::nn::Module& model);

// Gives these layers a shared workspace: one buffer of the largest layer's size in the compute dtype, into which each
// layer is dequantised in turn. Its address is stable, so captured steps may use it. Call once, after every layer has
// its weight. Does nothing if the model has no such layers.
void share_quantized_workspace(const torch::nn::Module& model, at::ScalarType compute_dtype);

// Whether these layers multiply many rows in 8 bits (FrozenWeight::fp8_products). They do not unless this was called.
// Layers of other formats than fp8 ignore it. transposed: they also keep their weights transposed (ops::Weight8), one
// more byte an element, for backward passes. Called before a step is captured.
void set_fp8_products(const torch::nn::Module& model, bool on, bool transposed = false);

// Memory of these layers.
struct QuantizedMemory {
  int64_t elements = 0;   // of all weights together
  int64_t bytes = 0;      // of values or codes, magnitudes and scales
  int64_t workspace = 0;  // bytes
};
QuantizedMemory quantized_memory(const torch::nn::Module& model);

}  // namespace hrm::nn

#pragma once
// Weights of frozen linear layers as products read them, and how a model's are kept as NF4 alone (QLoRA, arXiv
// 2305.14314; the format: hrm/ops/nf4.h).

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hrm/ops/nf4.h"

namespace hrm::nn {

class Linear;

struct FrozenWeight {
  at::Tensor weight;   // (out, in) in the compute dtype; beside NF4 the workspace's beginning, which read() writes
  ops::Nf4Tensor nf4;  // undefined: the weight is held as it is

  // What a product reads. With NF4 it is dequantised, and valid until the next read() of any layer of the model: the
  // product follows at once and on the same stream.
  const at::Tensor& read() const;

  // For an autograd node, which then keeps the codes and the workspace, no dequantised copy. The workspace is no saved
  // variable: it is overwritten between the passes.
  c10::IValue to_ivalue() const;
  static FrozenWeight from_ivalue(const c10::IValue& value);
};

// x weight^T (+ residual), (..., in) -> (..., out); x and residual get their gradients, the weight none. Keeps the
// weight as it is held and nothing else. Deterministic; can be captured.
at::Tensor frozen_linear(const at::Tensor& x, const FrozenWeight& weight,
                         const std::optional<at::Tensor>& residual = {});

// The layers of a model that were made with WeightFormat::nf4, by their parameters' names, in the module tree's order.
struct Nf4Layer {
  std::string weight;  // "model.layers.0.self_attn.qkv_proj.weight"
  std::shared_ptr<Linear> linear;
};
std::vector<Nf4Layer> nf4_layers(const torch::nn::Module& model);

// Gives these layers their workspace: one buffer of the largest layer in the compute dtype, in which all of them are
// dequantised by turns. Its address stays, so that captured steps may use it. Once, after every layer has its weight.
// Nothing where the model has no such layers.
void share_nf4_workspace(const torch::nn::Module& model, at::ScalarType compute_dtype);

// What they take.
struct Nf4Memory {
  int64_t elements = 0;   // of all weights
  int64_t bytes = 0;      // of codes, magnitudes and scales
  int64_t workspace = 0;  // bytes
};
Nf4Memory nf4_memory(const torch::nn::Module& model);

}  // namespace hrm::nn

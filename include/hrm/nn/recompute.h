#pragma once
// Activation checkpointing: a part of a model whose intermediate values are computed again in the backward pass instead
// of being kept (Chen et al., arXiv 1604.06174).

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace hrm::nn {

// inputs -> outputs, all of them differentiable. Called twice with equal inputs, it must do the same twice.
using RecomputedPart = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// part(inputs), of which only the inputs are kept. Gradients of parameters are added where part's own backward pass
// adds them. leaf: any parameter of the part that trains, so that the backward pass comes by also where no input needs
// a gradient. Call in gradient mode; all inputs are
// defined.
std::vector<at::Tensor> recompute(const RecomputedPart& part, const std::vector<at::Tensor>& inputs,
                                  const at::Tensor& leaf);

}  // namespace hrm::nn

#include "hrm/nn/frozen_weight.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/nn/linear.h"
#include "hrm/ops/fp8_rows.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct FrozenLinear : torch::autograd::Function<FrozenLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const std::optional<at::Tensor>& residual,
                            const FrozenWeight* weight) {
    ctx->saved_data["weight"] = weight->to_ivalue();
    ctx->saved_data["needs_x"] = x.requires_grad();
    ctx->saved_data["has_residual"] = residual.has_value();
    return weight->product(x, residual);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "a frozen layer has no second derivative");
    const FrozenWeight weight = FrozenWeight::from_ivalue(ctx->saved_data["weight"]);
    variable_list result(3);
    if (ctx->saved_data["needs_x"].toBool()) result[0] = weight.grad_x(grads[0]);
    if (ctx->saved_data["has_residual"].toBool()) result[1] = grads[0];
    return result;
  }
};

}  // namespace

const at::Tensor& FrozenWeight::read() const {
  if (nf4.defined()) ops::nf4_dequantize_(weight, nf4);
  if (weight8.defined()) ops::dequantize_weight8_(weight, weight8);
  return weight;
}

at::Tensor FrozenWeight::product(const at::Tensor& x, const std::optional<at::Tensor>& residual) const {
  const at::NoGradGuard no_grad;
  if (weight8.defined()) return ops::linear_weight8(x, weight8, residual, weight, fp8_products);
  if (nf4.defined()) return ops::linear_nf4(x, nf4, weight, residual);
  const at::Tensor& w = read();
  return residual ? ops::linear_add(x, w, w, *residual) : ops::linear(x, w, w);
}

at::Tensor FrozenWeight::grad_x(const at::Tensor& grad) const {
  if (weight8.defined()) return ops::linear_weight8_grad_x(grad, weight8, weight, fp8_products);
  return ops::linear_grad_x(grad, read());
}

at::Tensor FrozenWeight::product(const ops::Fp8RowsBeside& x, at::ScalarType dtype,
                                 const std::optional<at::Tensor>& residual) const {
  const at::NoGradGuard no_grad;
  return ops::fp8_rows_product(x.values, weight8.values, x.scales, weight8.scales, dtype, residual);
}

at::Tensor FrozenWeight::grad_x(const ops::Fp8RowsBeside& grad, at::ScalarType dtype) const {
  return ops::linear_weight8_grad_rows(grad.values, grad.scales, weight8, weight, dtype);
}

c10::IValue FrozenWeight::to_ivalue() const {
  std::vector<at::Tensor> in4, in8;
  if (nf4.defined()) in4 = {nf4.codes, nf4.absmax, nf4.scales, nf4.offset};
  if (weight8.defined()) in8 = {weight8.values, weight8.scales, weight8.transposed, weight8.ones};
  return c10::ivalue::Tuple::create(weight, in4, in8, fp8_products);
}

FrozenWeight FrozenWeight::from_ivalue(const c10::IValue& value) {
  const auto parts = value.toTuple();
  const auto& elements = parts->elements();
  const std::vector<at::Tensor> in4 = elements[1].toTensorVector(), in8 = elements[2].toTensorVector();
  FrozenWeight out{.weight = elements[0].toTensor(), .fp8_products = elements[3].toBool()};
  if (!in4.empty()) out.nf4 = {.codes = in4[0], .absmax = in4[1], .scales = in4[2], .offset = in4[3]};
  if (!in8.empty()) out.weight8 = {.values = in8[0], .scales = in8[1], .transposed = in8[2], .ones = in8[3]};
  return out;
}

at::Tensor frozen_linear(const at::Tensor& x, const FrozenWeight& weight, const std::optional<at::Tensor>& residual) {
  if (!at::GradMode::is_enabled()) return weight.product(x, residual);
  return FrozenLinear::apply(x, residual, &weight);
}

std::vector<QuantizedLayer> quantized_layers(const torch::nn::Module& model) {
  std::vector<QuantizedLayer> layers;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    const auto linear = std::dynamic_pointer_cast<Linear>(item.value());
    if (linear && is_quantized(linear->format())) layers.push_back({cat(item.key(), ".weight"), linear});
  }
  return layers;
}

void share_quantized_workspace(const torch::nn::Module& model, at::ScalarType compute_dtype) {
  const std::vector<QuantizedLayer> layers = quantized_layers(model);
  if (layers.empty()) return;
  int64_t largest = 0;
  for (const QuantizedLayer& layer : layers) {
    require(layer.linear->has_quantized(), ExitCode::unexpected, "'", layer.weight, "' has no ",
            name(layer.linear->format()), " weight; call hold_quantized() first");
    largest = std::max(largest, layer.linear->weight().numel());
  }
  const at::Device device = layers.front().linear->device();
  const at::Tensor workspace = at::empty({largest}, at::device(device).dtype(compute_dtype));
  for (const QuantizedLayer& layer : layers) {
    const at::Tensor& weight = layer.linear->weight();
    layer.linear->set_workspace(workspace.narrow(0, 0, weight.numel()).view(weight.sizes()));
  }
}

void set_fp8_products(const torch::nn::Module& model, bool on, bool transposed) {
  for (const QuantizedLayer& layer : quantized_layers(model)) layer.linear->set_fp8_products(on, transposed);
}

QuantizedMemory quantized_memory(const torch::nn::Module& model) {
  QuantizedMemory memory;
  for (const QuantizedLayer& layer : quantized_layers(model)) {
    memory.elements += layer.linear->weight().numel();
    memory.bytes += layer.linear->quantized_bytes();
    const at::Tensor workspace = layer.linear->frozen_weight().weight;
    if (workspace.defined() && !workspace.is_meta()) {
      memory.workspace = std::max(memory.workspace, static_cast<int64_t>(workspace.storage().nbytes()));
    }
  }
  return memory;
}

}  // namespace hrm::nn

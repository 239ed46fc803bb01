#include "hrm/nn/fp8_block.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <tuple>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/nn/fp8_linears.h"
#include "hrm/nn/recompute.h"
#include "hrm/ops/fp8_block.h"
#include "hrm/ops/linear.h"

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_matrix(const at::Tensor& t) {
  return t.reshape({-1, t.size(-1)});
}

// A layer of this pass; inside the functions there is no gradient mode, by which Linear::fp8_layer() goes.
struct Layer {
  const Fp8Layer* fp8;
  at::Tensor master;

  static Layer of(const Linear& linear) {
    const Fp8Layer* const layer = linear.fp8_layer();
    require(layer != nullptr, ExitCode::unexpected, "this layer does not multiply in 8 bits now; use forward()");
    return {layer, linear.weight()};
  }
};

// What the backward pass needs of a layer. None of it is a saved variable: a step changes slots and gradient buffers in
// place, which is not behind the graph's back.
struct Backward {
  ops::Fp8Weight weight;
  at::Tensor x_slot, grad_slot;
  at::Tensor grad_weight;  // undefined for a frozen weight
  bool is_wide = false;
  bool e5m2 = true;
  std::optional<double> margin;

  bool trains() const { return grad_weight.defined(); }

  static void keep(AutogradContext* ctx, const std::string& name, const Layer& layer, const at::Tensor& x_slot) {
    const Fp8Layer& fp8 = *layer.fp8;
    ctx->saved_data[name] = std::vector<at::Tensor>{fp8.weight().values,     fp8.weight().slot,
                                                    fp8.weight().transposed, x_slot,
                                                    fp8.grad_slot(),         ops::gradient_buffer(layer.master)};
    ctx->saved_data[name + " is wide"] = fp8.is_wide();
    ctx->saved_data["e5m2"] = fp8.e5m2();
    ctx->saved_data["margin"] = fp8.margin();
  }

  static Backward of(AutogradContext* ctx, const std::string& name) {
    const std::vector<at::Tensor> kept = ctx->saved_data[name].toTensorVector();
    return {.weight = {kept[0], kept[1], kept[2]},
            .x_slot = kept[3],
            .grad_slot = kept[4],
            .grad_weight = kept[5],
            .is_wide = ctx->saved_data[name + " is wide"].toBool(),
            .e5m2 = ctx->saved_data["e5m2"].toBool(),
            .margin = ctx->saved_data["margin"].toOptional<double>()};
  }

  // x_t: the layer's input, transposed.
  void accumulate(const ops::Fp8Pair& grad, const at::Tensor& x_t) const {
    if (trains()) ops::fp8_accumulate_(grad_weight, grad.transposed, x_t, grad.slot, x_slot);
  }
  at::Tensor grad_x(const ops::Fp8Pair& grad, at::ScalarType dtype) const {
    return ops::fp8_product(grad.values, ops::transposed_weight(weight), grad.slot, weight.slot, dtype);
  }
  ops::Fp8Pair pair(const at::Tensor& grad, bool transposed = true) const {
    return ops::fp8_pair(grad, grad_slot, e5m2, transposed && trains(), margin);
  }
};

at::Tensor product(const ops::Fp8Pair& x, const Fp8Layer& layer, at::ScalarType dtype,
                   const std::optional<at::Tensor>& residual = std::nullopt) {
  return ops::fp8_product(x.values, layer.weight().values, x.slot, layer.weight().slot, dtype, residual);
}

// The norm in front of a layer. Its backward pass computes the transposed result again, from x, which it keeps anyway.
ops::Fp8Normed run_norm(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& scale, double eps,
                        const Layer& layer) {
  const Fp8Layer& fp8 = *layer.fp8;
  ops::Fp8Normed normed = ops::weighted_rms_norm_fp8(as_matrix(x), scale.detach(), eps, fp8.x_slot(),
                                                     /*transposed=*/false, fp8.margin());
  Backward::keep(ctx, "front", layer, normed.y.slot);
  ctx->saved_data["trains_norm"] = scale.requires_grad();
  return normed;
}

// The gradients of x and of the norm's scale, given that of the layer's result in 8 bits, and that of x by way of the
// residual addition.
std::tuple<at::Tensor, at::Tensor> front_backward(AutogradContext* ctx, const ops::Fp8Pair& grad, const at::Tensor& x,
                                                  const at::Tensor& scale, const at::Tensor& rstd,
                                                  const at::Tensor& grad_stream) {
  const Backward layer = Backward::of(ctx, "front");
  if (layer.trains()) {
    layer.accumulate(grad, ops::weighted_rms_norm_transposed_fp8(as_matrix(x), scale, rstd, layer.x_slot));
  }
  const auto [grad_x, grad_scale] =
      ops::weighted_rms_norm_backward(layer.grad_x(grad, x.scalar_type()), as_matrix(x), rstd, scale,
                                      as_matrix(grad_stream), ctx->saved_data["trains_norm"].toBool());
  return {grad_x.view(x.sizes()), grad_scale};
}

// The masters are arguments so that the node exists whenever they are trained, even if x needs no gradient.
struct NormedLinear : torch::autograd::Function<NormedLinear> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& scale,
                               const at::Tensor& /*master*/, const Layer& layer, double eps) {
    const ops::Fp8Normed normed = run_norm(ctx, x, scale, eps, layer);
    ctx->save_for_backward({x, scale, normed.rstd});
    const at::Tensor y = product(normed.y, *layer.fp8, x.scalar_type());
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = y.size(1);
    return {y.view(sizes), x.detach()};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "a layer in 8 bits has no second derivative");
    const variable_list saved = ctx->get_saved_variables();
    const ops::Fp8Pair grad = Backward::of(ctx, "front").pair(as_matrix(grads[0]));
    const auto [grad_x, grad_scale] = front_backward(ctx, grad, saved[0], saved[1], saved[2], grads[1]);
    return {grad_x, grad_scale, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct QkvHeads : torch::autograd::Function<QkvHeads> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& scale,
                               const at::Tensor& /*master*/, const Layer& layer, double eps, const ops::QkvSizes& sizes,
                               const ops::QkvHeadOptions& options) {
    const ops::Fp8Normed normed = run_norm(ctx, x, scale, eps, layer);
    ctx->save_for_backward({x, scale, normed.rstd, options.cos, options.sin});
    const at::Tensor qkv = product(normed.y, *layer.fp8, x.scalar_type());
    const ops::QkvHeads heads = ops::qkv_heads_(qkv.view({x.size(0), x.size(1), -1}), sizes, options);
    return {heads.q, heads.k, heads.v, x.detach()};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "attention in 8 bits has no second derivative");
    const variable_list saved = ctx->get_saved_variables();
    const Backward layer = Backward::of(ctx, "front");
    const ops::Fp8Pair grad = ops::qkv_heads_backward_fp8(grads[0], grads[1], grads[2], saved[3], saved[4],
                                                          layer.grad_slot, layer.e5m2, layer.trains(), layer.margin);
    const auto [grad_x, grad_scale] = front_backward(ctx, grad, saved[0], saved[1], saved[2], grads[3]);
    variable_list out(7);
    out[0] = grad_x;
    out[1] = grad_scale;
    return out;
  }
};

struct SwigluAdd : torch::autograd::Function<SwigluAdd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& scale,
                            const at::Tensor& /*gate_up_master*/, const at::Tensor& /*down_master*/,
                            const Layer& gate_up_proj, const Layer& down_proj, double eps) {
    const ops::Fp8Normed normed = run_norm(ctx, x, scale, eps, gate_up_proj);
    const Fp8Layer& down = *down_proj.fp8;
    const ops::Fp8Swiglu gates =
        ops::fp8_linear_swiglu(normed.y, gate_up_proj.fp8->weight(), down.x_slot(), x.scalar_type(), down.margin());
    Backward::keep(ctx, "down", down_proj, gates.act.slot);
    ctx->save_for_backward({x, scale, normed.rstd, gates.gate_up});
    if (result_is_unread()) return at::empty_like(x);
    return product(gates.act, down, x.scalar_type(), as_matrix(x)).view(x.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "a SwiGLU layer in 8 bits has no second derivative");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &gate_up = saved[3];
    const Backward front = Backward::of(ctx, "front"), down = Backward::of(ctx, "down");
    // Most memory is in use here. So what is not needed any more is freed on the way, and the gradient of a wide layer
    // is quantised twice: as it stands, and transposed when the gates are done.
    ops::Fp8Pair grad = down.pair(as_matrix(grads[0]), /*transposed=*/!down.is_wide);
    at::Tensor grad_act = down.grad_x(grad, x.scalar_type());
    grad.values.reset();
    ops::Fp8SwigluGradient gates = ops::swiglu_backward_fp8(grad_act, gate_up, front.grad_slot, front.e5m2, down.x_slot,
                                                            front.trains(), down.trains(), front.margin);
    grad_act.reset();
    if (down.is_wide && down.trains()) {
      grad.transposed = std::get<1>(
          ops::quantize_fp8_pair(as_matrix(grads[0]), grad.slot, down.e5m2, /*values=*/false, /*transposed=*/true));
    }
    down.accumulate(grad, gates.act_transposed);
    grad.transposed.reset();
    gates.act_transposed.reset();
    const auto [grad_x, grad_scale] = front_backward(ctx, gates.gate_up, x, saved[1], saved[2], grads[0]);
    variable_list out(7);
    out[0] = grad_x;
    out[1] = grad_scale;
    return out;
  }
};

}  // namespace

Fp8Heads fp8_qkv_heads(const at::Tensor& x, const RmsNorm& norm, const Linear& qkv_proj, const ops::QkvSizes& sizes,
                       const ops::QkvHeadOptions& options) {
  require(!options.q_weight.defined(), ExitCode::unexpected,
          "heads with norms have no fused form in 8 bits; use fp8_normed_linear()");
  const variable_list out =
      QkvHeads::apply(x, norm.scale(), qkv_proj.weight(), Layer::of(qkv_proj), norm.eps(), sizes, options);
  return {{out[0], out[1], out[2]}, out[3]};
}

ops::NormedStream fp8_normed_linear(const at::Tensor& x, const RmsNorm& norm, const Linear& linear) {
  const variable_list out = NormedLinear::apply(x, norm.scale(), linear.weight(), Layer::of(linear), norm.eps());
  return {out[0], out[1]};
}

at::Tensor fp8_swiglu_add(const at::Tensor& x, const RmsNorm& norm, const Linear& gate_up_proj,
                          const Linear& down_proj) {
  return SwigluAdd::apply(x, norm.scale(), gate_up_proj.weight(), down_proj.weight(), Layer::of(gate_up_proj),
                          Layer::of(down_proj), norm.eps());
}

}  // namespace hrm::nn

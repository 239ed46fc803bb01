#include "hrm/nn/sub_blocks.h"

#include <torch/csrc/autograd/custom_function.h>

#include "hrm/ops/attention.h"
#include "hrm/ops/conv_swiglu.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/linear_rms_norm.h"
#include "hrm/ops/linear_swiglu.h"
#include "hrm/ops/rms_norm.h"

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// (..., N) as a matrix (rows, N).
at::Tensor rows(const at::Tensor& t) {
  return t.reshape({-1, t.size(-1)});
}

// The gradient buffers of both GEMMs are not saved variables, because each use of a weight adds to them in place.
void keep_gradient_buffers(AutogradContext* ctx, const Linear& first, const Linear& second) {
  ctx->saved_data["grad_first"] = ops::gradient_buffer(first.weight());
  ctx->saved_data["grad_second"] = ops::gradient_buffer(second.weight());
}

void accumulate(AutogradContext* ctx, const char* buffer, const at::Tensor& grad_y, const at::Tensor& x) {
  const at::Tensor grad_weight = ctx->saved_data[buffer].toTensor();
  if (grad_weight.defined()) ops::linear_accumulate_(grad_weight, rows(grad_y), rows(x));
}

bool needs_gradient(const at::Tensor& h, const Linear& first, const Linear& second) {
  return at::GradMode::is_enabled() &&
         (h.requires_grad() || first.weight().requires_grad() || second.weight().requires_grad());
}

// The masters are arguments so that the node exists whenever they are trained, even if h needs no gradient.
struct AttentionSubBlock : torch::autograd::Function<AttentionSubBlock> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& h, const at::Tensor& /*qkv_master*/,
                            const at::Tensor& /*o_master*/, const Attention* attention, double eps) {
    const Linear &qkv_proj = attention->qkv_proj(), &o_proj = attention->o_proj();
    const RotaryTable& rotary = attention->rotary();
    const at::Tensor qkv = qkv_proj.forward(h);
    const auto [mixed, lse] = ops::attention_forward(qkv, attention->heads(), rotary.cos, rotary.sin);
    const auto [y, rstd] = ops::linear_rms_norm_forward(mixed, o_proj.compute_weight(), h, eps);
    ctx->save_for_backward(
        {h, qkv, mixed, lse, y, rstd, qkv_proj.compute_weight(), o_proj.compute_weight(), rotary.cos, rotary.sin});
    ctx->saved_data["heads"] = attention->heads();
    keep_gradient_buffers(ctx, qkv_proj, o_proj);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &h = saved[0], &qkv = saved[1], &mixed = saved[2], &lse = saved[3], &y = saved[4],
                     &rstd = saved[5], &qkv_weight = saved[6], &o_weight = saved[7];
    const at::Tensor grad_sum = ops::rms_norm_backward(grads[0], y, rstd);
    accumulate(ctx, "grad_second", grad_sum, mixed);
    const at::Tensor grad_mixed = ops::linear_grad_x(grad_sum, o_weight);
    const at::Tensor grad_qkv =
        ops::attention_backward(grad_mixed, qkv, mixed, lse, ctx->saved_data["heads"].toInt(), saved[8], saved[9]);
    accumulate(ctx, "grad_first", grad_qkv, h);
    ops::linear_grad_x_add_(grad_sum, grad_qkv, qkv_weight);
    return {grad_sum, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct MlpSubBlock : torch::autograd::Function<MlpSubBlock> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& h, const at::Tensor& /*gate_up_master*/,
                            const at::Tensor& /*down_master*/, const SwiGLU* mlp, double eps) {
    const Linear &gate_up_proj = mlp->gate_up_proj(), &down_proj = mlp->down_proj();
    const auto [act, gate_up] = ops::linear_swiglu_forward(h, gate_up_proj.compute_weight());
    const auto [y, rstd] = ops::linear_rms_norm_forward(act, down_proj.compute_weight(), h, eps);
    ctx->save_for_backward({h, gate_up, act, y, rstd, gate_up_proj.compute_weight(), down_proj.compute_weight()});
    keep_gradient_buffers(ctx, gate_up_proj, down_proj);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &h = saved[0], &gate_up = saved[1], &act = saved[2], &y = saved[3], &rstd = saved[4],
                     &gate_up_weight = saved[5], &down_weight = saved[6];
    const at::Tensor grad_sum = ops::rms_norm_backward(grads[0], y, rstd);
    const at::Tensor grad_gate_up = ops::linear_swiglu_backward(grad_sum, down_weight, gate_up);
    accumulate(ctx, "grad_second", grad_sum, act);
    accumulate(ctx, "grad_first", grad_gate_up, h);
    ops::linear_grad_x_add_(grad_sum, grad_gate_up, gate_up_weight);
    return {grad_sum, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// The same with a convolution between the gate and down_proj. Its gradients add to their buffers like those of the
// GEMMs.
struct ConvMlpSubBlock : torch::autograd::Function<ConvMlpSubBlock> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& h, const at::Tensor& /*gate_up_master*/,
                            const at::Tensor& /*conv_weight*/, const at::Tensor& /*conv_bias*/,
                            const at::Tensor& /*down_master*/, const SwiGLU* mlp, double eps) {
    const Linear &gate_up_proj = mlp->gate_up_proj(), &down_proj = mlp->down_proj();
    const DepthwiseConv& conv = *mlp->dwconv();
    const at::Tensor gate_up = gate_up_proj.forward(h);
    const at::Tensor taps = conv.taps().detach(), bias = conv.bias().detach();
    const at::Tensor act = ops::conv_swiglu(gate_up, taps, bias);
    const auto [y, rstd] = ops::linear_rms_norm_forward(act, down_proj.compute_weight(), h, eps);
    ctx->save_for_backward(
        {h, gate_up, act, y, rstd, gate_up_proj.compute_weight(), down_proj.compute_weight(), taps, bias});
    keep_gradient_buffers(ctx, gate_up_proj, down_proj);
    ctx->saved_data["grad_conv"] = ops::gradient_buffer(conv.weight());
    ctx->saved_data["grad_conv_bias"] = ops::gradient_buffer(conv.bias());
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &h = saved[0], &gate_up = saved[1], &act = saved[2], &y = saved[3], &rstd = saved[4],
                     &gate_up_weight = saved[5], &down_weight = saved[6];
    at::Tensor grad_conv = ctx->saved_data["grad_conv"].toTensor();
    at::Tensor grad_conv_bias = ctx->saved_data["grad_conv_bias"].toTensor();
    const at::Tensor grad_sum = ops::rms_norm_backward(grads[0], y, rstd);
    accumulate(ctx, "grad_second", grad_sum, act);
    const auto [grad_gate_up, grad_taps, grad_bias] =
        ops::conv_swiglu_backward(ops::linear_grad_x(grad_sum, down_weight), gate_up, saved[7], saved[8],
                                  /*needs_weight=*/grad_conv.defined() || grad_conv_bias.defined());
    if (grad_conv.defined()) grad_conv.add_(grad_taps.view(grad_conv.sizes()));
    if (grad_conv_bias.defined()) grad_conv_bias.add_(grad_bias);
    accumulate(ctx, "grad_first", grad_gate_up, h);
    ops::linear_grad_x_add_(grad_sum, grad_gate_up, gate_up_weight);
    return {grad_sum, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Without gradient: what down_proj reads.
at::Tensor activation(const at::Tensor& h, const SwiGLU& mlp) {
  if (const DepthwiseConv* conv = mlp.dwconv()) {
    return ops::conv_swiglu(mlp.gate_up_proj().forward(h), conv->taps(), conv->bias());
  }
  return ops::linear_swiglu(h, mlp.gate_up_proj().compute_weight());
}

}  // namespace

at::Tensor attention_sub_block(const at::Tensor& h, const Attention& attention, double eps) {
  const Linear &qkv_proj = attention.qkv_proj(), &o_proj = attention.o_proj();
  const RotaryTable& rotary = attention.rotary();
  if (!needs_gradient(h, qkv_proj, o_proj)) {
    const at::Tensor mixed =
        ops::attention_projected(h, qkv_proj.compute_weight(), attention.heads(), rotary.cos, rotary.sin);
    return ops::linear_rms_norm(mixed, o_proj.compute_weight(), h, eps);
  }
  // A view with the shape of qkv; only its shape, dtype and device are read.
  const at::Tensor qkv_shape = h.as_strided({h.size(0), h.size(1), 3 * h.size(2)}, {0, 0, 0});
  if (ops::attention_fits(qkv_shape, attention.heads())) {
    return AttentionSubBlock::apply(h, qkv_proj.weight(), o_proj.weight(), &attention, eps);
  }
  const at::Tensor mixed = ops::attention_(qkv_proj.forward(h), attention.heads(), rotary.cos, rotary.sin);
  return ops::rms_norm_residual(o_proj.forward(mixed), h, eps);
}

at::Tensor attention_first_position(const at::Tensor& h, const Attention& attention, double eps) {
  const at::NoGradGuard no_grad;
  const RotaryTable& rotary = attention.rotary();
  const at::Tensor mixed =
      ops::attention(attention.qkv_proj().forward(h), attention.heads(), rotary.cos, rotary.sin).select(1, 0);
  return ops::linear_rms_norm(mixed.contiguous(), attention.o_proj().compute_weight(), h.select(1, 0).contiguous(),
                              eps);
}

at::Tensor mlp_sub_block(const at::Tensor& h, const SwiGLU& mlp, double eps) {
  const Linear &gate_up_proj = mlp.gate_up_proj(), &down_proj = mlp.down_proj();
  const DepthwiseConv* const conv = mlp.dwconv();
  const bool trains_conv =
      conv != nullptr && at::GradMode::is_enabled() && (conv->weight().requires_grad() || conv->bias().requires_grad());
  if (!needs_gradient(h, gate_up_proj, down_proj) && !trains_conv) {
    return ops::linear_rms_norm(activation(h, mlp), down_proj.compute_weight(), h, eps);
  }
  if (conv != nullptr) {
    return ConvMlpSubBlock::apply(h, gate_up_proj.weight(), conv->weight(), conv->bias(), down_proj.weight(), &mlp,
                                  eps);
  }
  return MlpSubBlock::apply(h, gate_up_proj.weight(), down_proj.weight(), &mlp, eps);
}

at::Tensor mlp_sub_block_add(const at::Tensor& h, const SwiGLU& mlp, double eps, const at::Tensor& addend) {
  const at::NoGradGuard no_grad;
  return ops::linear_rms_norm_add(activation(h, mlp), mlp.down_proj().compute_weight(), h, eps, addend);
}

}  // namespace hrm::nn

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/linear.h"
#include "hrm/ops/stale_gradient.h"
#include "ops/attention/qkv_heads_impl.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool needs_gradient(const at::Tensor& t) {
  return t.defined() && t.requires_grad();
}

// q, k and v as views of qkv; with norms, q and k are views of a new tensor.
QkvHeads compute(const at::Tensor& qkv, const QkvSizes& s, const QkvHeadOptions& o, bool turned = false) {
  const auto heads = [&](const at::Tensor& rows, int64_t first, int64_t count) { return rows.narrow(2, first, count); };
  const at::Tensor all = qkv.unflatten(2, {s.heads + 2 * s.kv_heads, s.head_dim});
  at::Tensor qk = all;
  if (o.q_weight.defined()) {
    qk = qkv_heads_norm(qkv, s, o);
  } else if (o.cos.defined() && !turned) {
    qkv_heads_rotate_(qkv, s, o.cos, o.sin);
  }
  return {heads(qk, 0, s.heads), heads(qk, s.heads, s.kv_heads), heads(all, s.heads + s.kv_heads, s.kv_heads)};
}

struct Projected {
  at::Tensor qkv;
  QkvHeads heads;
};

Projected project(const at::Tensor& x, const at::Tensor& weight, const QkvSizes& s, const QkvHeadOptions& o) {
  const bool turned = o.cos.defined() && !o.q_weight.defined();
  const at::Tensor qkv = turned ? qkv_heads_product(x, weight, s, o.cos, o.sin) : linear(x, weight, weight, {}, {}, {});
  check_qkv_heads(qkv, s, o);
  return {qkv, compute(qkv, s, o, turned)};
}

struct Split : torch::autograd::Function<Split> {
  // The weights are arguments so that autograd sees them.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& qkv,
                               const std::optional<at::Tensor>& /*q_weight*/,
                               const std::optional<at::Tensor>& /*k_weight*/, const QkvSizes& sizes,
                               const QkvHeadOptions& options) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({options.cos, options.sin, options.q_weight, options.k_weight,
                            options.q_weight.defined() ? qkv : at::Tensor()});
    ctx->saved_data["eps"] = options.eps;
    ctx->saved_data["needs_weights"] = needs_gradient(options.q_weight) || needs_gradient(options.k_weight);
    const QkvHeads out = compute(qkv.detach(), sizes, options);
    return {out.q, out.k, out.v};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto [grad_qkv, grad_q_weight, grad_k_weight] =
        qkv_heads_backward(grads[0], grads[1], grads[2], saved[4],
                           {saved[0], saved[1], saved[2], saved[3], ctx->saved_data["eps"].toDouble()},
                           ctx->saved_data["needs_weights"].toBool());
    return {grad_qkv, grad_q_weight, grad_k_weight, at::Tensor(), at::Tensor()};
  }
};

struct OfProjection : torch::autograd::Function<OfProjection> {
  // The master and the norms' weights are arguments so that autograd sees them.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight_compute,
                               const at::Tensor& master, const std::optional<at::Tensor>& /*q_weight*/,
                               const std::optional<at::Tensor>& /*k_weight*/, const QkvSizes& sizes,
                               const QkvHeadOptions& options) {
    const at::Tensor grad_weight = stale_gradient_buffer(master);
    at::AutoDispatchBelowADInplaceOrView below;
    const Projected out = project(x, weight_compute, sizes, options);
    ctx->save_for_backward({grad_weight.defined() ? x : at::Tensor(), weight_compute, options.cos, options.sin,
                            options.q_weight, options.k_weight, options.q_weight.defined() ? out.qkv : at::Tensor()});
    ctx->saved_data["needs_x"] = x.requires_grad();
    ctx->saved_data["eps"] = options.eps;
    ctx->saved_data["needs_weights"] = needs_gradient(options.q_weight) || needs_gradient(options.k_weight);
    // Not a saved variable: each use of the weight adds to it, and autograd would report that as an in-place
    // modification.
    ctx->saved_data["grad_weight"] = grad_weight;
    return {out.heads.q, out.heads.k, out.heads.v};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::qkv_heads_of has no second derivative (grad_q ", grads[0].sizes(),
                ")");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const auto [grad_qkv, grad_q_weight, grad_k_weight] =
        qkv_heads_backward(grads[0], grads[1], grads[2], saved[6],
                           {saved[2], saved[3], saved[4], saved[5], ctx->saved_data["eps"].toDouble()},
                           ctx->saved_data["needs_weights"].toBool());
    if (const at::Tensor grad_weight = ctx->saved_data["grad_weight"].toTensor(); grad_weight.defined()) {
      linear_accumulate_(grad_weight, grad_qkv.flatten(0, 1), saved[0].flatten(0, 1));
    }
    variable_list out(7);
    if (ctx->saved_data["needs_x"].toBool()) out[0] = linear_grad_x(grad_qkv, weight);
    out[3] = grad_q_weight;
    out[4] = grad_k_weight;
    return out;
  }
};

}  // namespace

QkvHeads qkv_heads_(const at::Tensor& qkv, const QkvSizes& sizes, const QkvHeadOptions& options) {
  check_qkv_heads(qkv, sizes, options);
  if (at::GradMode::is_enabled() &&
      (needs_gradient(qkv) || needs_gradient(options.q_weight) || needs_gradient(options.k_weight))) {
    const variable_list out =
        Split::apply(qkv, optional_tensor(options.q_weight), optional_tensor(options.k_weight), sizes, options);
    return {out[0], out[1], out[2]};
  }
  return compute(qkv.detach(), sizes, options);
}

QkvHeads qkv_heads_of(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                      const QkvSizes& sizes, const QkvHeadOptions& options) {
  TORCH_CHECK(master.sizes() == weight_compute.sizes(), "hrm::qkv_heads_of: master has shape ", master.sizes(),
              ", weight_compute ", weight_compute.sizes());
  if (at::GradMode::is_enabled() && (needs_gradient(x) || needs_gradient(master) || needs_gradient(options.q_weight) ||
                                     needs_gradient(options.k_weight))) {
    TORCH_CHECK(!weight_compute.requires_grad() || weight_compute.is_same(master),
                "hrm::qkv_heads_of: weight_compute of shape ", weight_compute.sizes(),
                " must not require a gradient; the master does");
    const variable_list out = OfProjection::apply(x, weight_compute, master, optional_tensor(options.q_weight),
                                                  optional_tensor(options.k_weight), sizes, options);
    return {out[0], out[1], out[2]};
  }
  return project(x, weight_compute, sizes, options).heads;
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("qkv_heads_product", torch::autograd::autogradNotImplementedFallback());
  // Differentiating these raises an error instead of silently dropping the gradient.
  m.impl("qkv_heads_rotate_", torch::autograd::autogradNotImplementedFallback());
  m.impl("qkv_heads_norm", torch::autograd::autogradNotImplementedFallback());
  m.impl("qkv_heads_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops

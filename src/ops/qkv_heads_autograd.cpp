#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/qkv_heads_impl.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// q, k and v as views, of qkv and where there are norms of a new tensor.
QkvHeads compute(const at::Tensor& qkv, const QkvSizes& s, const QkvHeadOptions& o) {
  const auto heads = [&](const at::Tensor& rows, int64_t first, int64_t count) { return rows.narrow(2, first, count); };
  const at::Tensor all = qkv.unflatten(2, {s.heads + 2 * s.kv_heads, s.head_dim});
  at::Tensor qk = all;
  if (o.q_weight.defined()) {
    qk = qkv_heads_norm(qkv, s, o);
  } else if (o.cos.defined()) {
    qkv_heads_rotate_(qkv, s, o.cos, o.sin);
  }
  return {heads(qk, 0, s.heads), heads(qk, s.heads, s.kv_heads), heads(all, s.heads + s.kv_heads, s.kv_heads)};
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
    const QkvHeads out = compute(qkv.detach(), sizes, options);
    return {out.q, out.k, out.v};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto [grad_qkv, grad_q_weight, grad_k_weight] =
        qkv_heads_backward(grads[0], grads[1], grads[2], saved[4],
                           {saved[0], saved[1], saved[2], saved[3], ctx->saved_data["eps"].toDouble()});
    return {grad_qkv, grad_q_weight, grad_k_weight, at::Tensor(), at::Tensor()};
  }
};

bool needs_gradient(const at::Tensor& t) {
  return t.defined() && t.requires_grad();
}

}  // namespace

QkvHeads qkv_heads_(const at::Tensor& qkv, const QkvSizes& sizes, const QkvHeadOptions& options) {
  check_qkv_heads(qkv, sizes, options);
  if (at::GradMode::is_enabled() &&
      (needs_gradient(qkv) || needs_gradient(options.q_weight) || needs_gradient(options.k_weight))) {
    const variable_list out = Split::apply(qkv, given(options.q_weight), given(options.k_weight), sizes, options);
    return {out[0], out[1], out[2]};
  }
  return compute(qkv.detach(), sizes, options);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  // Differentiating through these is an error instead of a silently missing gradient.
  m.impl("qkv_heads_rotate_", torch::autograd::autogradNotImplementedFallback());
  m.impl("qkv_heads_norm", torch::autograd::autogradNotImplementedFallback());
  m.impl("qkv_heads_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops

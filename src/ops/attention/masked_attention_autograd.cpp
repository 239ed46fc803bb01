#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/attention/masked_attention_impl.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct MaskedAttention : torch::autograd::Function<MaskedAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const OptionalTensor& starts, const OptionalTensor& offsets, int64_t window) {
    at::AutoDispatchBelowADInplaceOrView below;
    const AttentionSpans spans = spans_of(starts, offsets, window);
    const MaskedForward forward = masked_attention_forward(q, k, v, spans);
    ctx->save_for_backward({q, k, v, forward.out, forward.sums, forward.state, spans.starts, spans.offsets});
    ctx->saved_data["window"] = window;
    return forward.out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list s = ctx->get_saved_variables();
    const AttentionSpans spans{.window = ctx->saved_data["window"].toInt(), .starts = s[6], .offsets = s[7]};
    const auto [q, k, v] = masked_attention_backward(grads[0], s[0], s[1], s[2], {s[3], s[4], s[5]}, spans);
    return {q, k, v, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor masked_attention_autograd(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const OptionalTensor& starts, const OptionalTensor& offsets, int64_t window) {
  if (at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad())) {
    const AttentionSpans spans = spans_of(starts, offsets, window);
    check_masked_attention("hrm::masked_attention", q, k, v, spans);
    if (wants_plain_mask()) return reference::masked_attention(q, k, v, spans);
    return MaskedAttention::apply(q, k, v, starts, offsets, window);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return masked_attention(q, k, v, spans_of(starts, offsets, window));
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("masked_attention", &masked_attention_autograd);
  m.impl("masked_attention_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("masked_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops

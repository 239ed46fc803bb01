#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/attention.h"
#include "ops/attention/attention_impl.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos,
                            const OptionalTensor& sin) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [out, lse] = attention_forward(qkv, heads, cos, sin);
    ctx->save_for_backward({qkv, out, lse, cos.value_or(at::Tensor()), sin.value_or(at::Tensor())});
    ctx->saved_data["heads"] = heads;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor grad = attention_backward(grads[0], saved[0], saved[1], saved[2], ctx->saved_data["heads"].toInt(),
                                               optional_tensor(saved[3]), optional_tensor(saved[4]));
    return {grad, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Returns q, k and v as views of the rotated copy, or of qkv itself.
struct SplitAndRotate : torch::autograd::Function<SplitAndRotate> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos,
                               const OptionalTensor& sin, bool overwrite) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({cos.value_or(at::Tensor()), sin.value_or(at::Tensor())});
    at::Tensor rotated = qkv.detach().contiguous();
    if (cos) {
      if (overwrite) {
        rotate_qkv_(rotated, heads, *cos, *sin);
      } else {
        rotated = rotate_qkv(rotated, heads, *cos, *sin);
      }
    }
    const auto [q, k, v] = split_heads(rotated, heads);
    return {q, k, v};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    return {rotate_qkv_backward(grads[0], grads[1], grads[2], optional_tensor(saved[0]), optional_tensor(saved[1])),
            at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor attention_autograd(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos,
                              const OptionalTensor& sin) {
  if (at::GradMode::is_enabled() && qkv.requires_grad()) {
    check_attention("hrm::attention", qkv, heads, cos, sin);
    if (attention_fits(qkv, heads)) return Attention::apply(qkv, heads, cos, sin);
    return attention_by_sdpa(qkv, heads, cos, sin, /*overwrite=*/false);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return attention(qkv, heads, cos.value_or(at::Tensor()), sin.value_or(at::Tensor()));
}

}  // namespace

at::Tensor attention_by_sdpa(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos, const OptionalTensor& sin,
                             bool overwrite) {
  const variable_list parts = SplitAndRotate::apply(qkv, heads, cos, sin, overwrite);
  return merge_heads(at::scaled_dot_product_attention(parts[0], parts[1], parts[2]));
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("attention", &attention_autograd);
  // Differentiating these raises an error instead of silently dropping the gradient.
  m.impl("attention_projected", torch::autograd::autogradNotImplementedFallback());
  m.impl("attention_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("attention_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("rotate_qkv", torch::autograd::autogradNotImplementedFallback());
  m.impl("rotate_qkv_", torch::autograd::autogradNotImplementedFallback());
  m.impl("rotate_qkv_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops

#include "hrm/nn/multihead_attention.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/ops/linear.h"
#include "ops/common/optional_tensor.h"

namespace hrm::nn {

MultiheadAttention::MultiheadAttention(int64_t width, int64_t heads, at::Device device) : width_(width), heads_(heads) {
  require(width % heads == 0, ExitCode::usage, heads, " attention heads do not divide the width ", width);
  in_proj_weight_ = register_parameter("in_proj_weight", at::empty({3 * width, width}, at::device(device)));
  in_proj_bias_ = register_parameter("in_proj_bias", at::empty({3 * width}, at::device(device)));
  compute_weight_ = in_proj_weight_;
  out_proj_ = register_module("out_proj", std::make_shared<Linear>(width, width, device, /*bias=*/true));
}

at::Tensor MultiheadAttention::project(const at::Tensor& x, int64_t first, int64_t count) const {
  if (count == 3 * width_) return ops::linear(x, compute_weight_, in_proj_weight_, in_proj_bias_);
  // Slices of a leaf act as their own leaves; their gradients go into the same slice of its buffer.
  const auto part = [&](const at::Tensor& leaf) {
    return leaf.detach().narrow(0, first, count).requires_grad_(leaf.requires_grad());
  };
  const auto buffer = [&](const at::Tensor& leaf) {
    const at::Tensor whole = at::GradMode::is_enabled() ? ops::gradient_buffer(leaf) : at::Tensor();
    return whole.defined() ? std::optional(whole.narrow(0, first, count)) : std::nullopt;
  };
  const at::Tensor master = part(in_proj_weight_);
  const at::Tensor compute =
      compute_weight_.is_same(in_proj_weight_) ? master : compute_weight_.narrow(0, first, count);
  return ops::linear(x, compute, master, part(in_proj_bias_), buffer(in_proj_weight_), buffer(in_proj_bias_));
}

at::Tensor MultiheadAttention::split_heads(const at::Tensor& x) const {
  return x.unflatten(-1, {heads_, width_ / heads_}).transpose(1, 2);
}

at::Tensor MultiheadAttention::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& mask, bool causal) const {
  const auto optional = ops::optional_tensor(mask);
  const at::Tensor mixed = at::scaled_dot_product_attention(split_heads(q), split_heads(k), split_heads(v), optional,
                                                            /*dropout_p=*/0, causal);
  return out_proj_->forward(mixed.transpose(1, 2).flatten(-2));
}

at::Tensor MultiheadAttention::forward(const at::Tensor& x, const at::Tensor& key_mask, bool causal) const {
  require(!causal || !key_mask.defined(), ExitCode::unexpected,
          "causal attention does not support a key mask; pass only one of them");
  const auto parts = project(x, 0, 3 * width_).split(width_, -1);
  const at::Tensor mask = key_mask.defined() ? key_mask.unsqueeze(1).unsqueeze(1) : at::Tensor();
  return attend(parts[0], parts[1], parts[2], mask, causal);
}

at::Tensor MultiheadAttention::cross(const at::Tensor& x, const at::Tensor& memory) const {
  const auto parts = project(memory, width_, 2 * width_).split(width_, -1);
  return attend(project(x, 0, width_), parts[0], parts[1], {}, /*causal=*/false);
}

}  // namespace hrm::nn

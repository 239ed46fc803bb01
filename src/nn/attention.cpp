#include "hrm/nn/attention.h"

namespace hrm::nn {

Attention::Attention(int64_t width, int64_t heads, RotaryTable rotary, at::Device device)
    : heads_(heads), rotary_(std::move(rotary)) {
  qkv_proj_ = register_module("qkv_proj", std::make_shared<Linear>(width, 3 * width, device));
  o_proj_ = register_module("o_proj", std::make_shared<Linear>(width, width, device));
}

at::Tensor Attention::forward(const at::Tensor& h) const {
  const auto [q, k, v] = split_and_rotate_(qkv_proj_->forward(h), heads_, rotary_);  // (B, heads, L, head_dim)
  const at::Tensor mixed = at::scaled_dot_product_attention(q, k, v);
  return o_proj_->forward(mixed.transpose(1, 2).reshape(h.sizes()));
}

}  // namespace hrm::nn

#include "hrm/nn/lm_head.h"

#include <ATen/ATen.h>

#include "hrm/ops/linear.h"

namespace hrm::nn {

LmHead::LmHead(int64_t width, int64_t vocabulary, at::Device device) {
  weight_ = register_parameter("weight", at::empty({vocabulary, width}, at::device(device)));
  compute_weight_ = weight_;
}

LmHead::LmHead(const at::Tensor& embedding) : weight_(embedding), compute_weight_(embedding) {}

at::Tensor LmHead::forward(const at::Tensor& hidden) const {
  return ops::linear(hidden, compute_weight_, weight_);
}

}  // namespace hrm::nn

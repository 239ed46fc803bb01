#include "hrm/nn/linear.h"

#include "hrm/ops/linear.h"

namespace hrm::nn {

Linear::Linear(int64_t in, int64_t out, at::Device device, bool bias) {
  weight_ = register_parameter("weight", at::empty({out, in}, at::device(device)));
  if (bias) bias_ = register_parameter("bias", at::empty({out}, at::device(device)));
  compute_weight_ = weight_;
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  return ops::linear(x, compute_weight_, weight_, bias_);
}

}  // namespace hrm::nn

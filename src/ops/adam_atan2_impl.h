#pragma once
// What the files of adam_atan2 share: arguments, checks and the plain ATen reference.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

struct AdamAtan2Args {
  at::TensorList params, grads, exp_avgs, exp_avg_sqs;
  const at::Tensor& step;
  const at::Tensor& lr;
  double beta1, beta2;
  at::ArrayRef<double> weight_decay;
  const at::Tensor& grad_scale;
  const at::Tensor& skip;
};

// Throws c10::Error with the op's name, the index and the shapes of what does not fit.
void check_adam_atan2(const AdamAtan2Args& args);

namespace reference {

// Any device, without host synchronisation on a GPU.
void adam_atan2_(const AdamAtan2Args& args);

}  // namespace reference
}  // namespace hrm::ops

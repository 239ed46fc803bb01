// The readable version, the CPU implementation, and the oracle of the CUDA kernel.
#include <ATen/ATen.h>

#include "ops/adam_atan2_impl.h"

namespace hrm::ops::reference {

void adam_atan2_(const AdamAtan2Args& args) {
  const at::NoGradGuard no_grad;
  // On the CPU the flag can be read. On a GPU that would wait for the device, so everything is computed and the old
  // values are chosen where the step is to be left out.
  const bool on_host = args.skip.is_cpu();
  if (on_host && args.skip.item<float>() != 0) return;
  const at::Tensor left_out = args.skip.ne(0);
  const auto assign = [&](const at::Tensor& target, const at::Tensor& value) {
    target.copy_(on_host ? value : at::where(left_out, target, value));
  };

  assign(args.step, args.step + 1);
  const at::Tensor t = args.step.to(at::kDouble);
  const at::Tensor correction1 = (1 - at::pow(args.beta1, t)).to(at::kFloat);
  const at::Tensor correction2_sqrt = at::sqrt(1 - at::pow(args.beta2, t)).to(at::kFloat);
  for (size_t i = 0; i < args.params.size(); ++i) {
    const at::Tensor& p = args.params[i];
    const at::Tensor& m = args.exp_avgs[i];
    const at::Tensor& v = args.exp_avg_sqs[i];
    const at::Tensor g = args.grads[i] * args.grad_scale;
    const at::Tensor new_m = at::lerp(m, g, 1 - args.beta1);
    const at::Tensor new_v = v * args.beta2 + g * g * (1 - args.beta2);
    const at::Tensor decayed = p * (1 - args.lr * args.weight_decay[i]);
    const at::Tensor direction = at::atan2(new_m, new_v.sqrt() / correction2_sqrt);
    assign(p, decayed - args.lr / correction1 * direction);
    assign(m, new_m);
    assign(v, new_v);
  }
}

}  // namespace hrm::ops::reference

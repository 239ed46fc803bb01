// The readable version, and the oracle of the CPU's and the GPU's kernel.
#include <ATen/ATen.h>

#include "ops/adam_impl.h"

namespace hrm::ops::reference {

void adam_(const AdamArgs& args) {
  const at::NoGradGuard no_grad;
  // Reading the flag would wait for the device, so everything is computed, and the old values are chosen where the step
  // is to be left out.
  const at::Tensor left_out = args.skip.ne(0);
  const auto assign = [&](at::Tensor target, const at::Tensor& value) {
    target.copy_(at::where(left_out, target, value));
  };
  assign(args.step, args.step + 1);
  const at::Tensor t = args.step.to(at::kDouble);
  const at::Tensor rate = args.lr / (1 - at::pow(args.beta1, t)).to(at::kFloat);
  const at::Tensor correction2_sqrt = at::sqrt(1 - at::pow(args.beta2, t)).to(at::kFloat);
  const auto squares = [](const at::Tensor& values) {
    const at::Tensor norm = at::linalg_vector_norm(values, 2, std::nullopt, /*keepdim=*/false, at::kDouble);
    return norm * norm;
  };
  at::Tensor moved = at::zeros({}, args.step.options().dtype(at::kDouble)), size = moved;
  for (size_t i = 0; i < args.params.size(); ++i) {
    const at::Tensor& p = args.params[i];
    const at::Tensor& m = args.exp_avgs[i];
    const at::Tensor& v = args.exp_avg_sqs[i];
    const at::Tensor g = args.grads[i] * args.grad_scale;
    const at::Tensor new_m = at::lerp(m, g, 1 - args.beta1);
    const at::Tensor new_v = v * args.beta2 + g * g * (1 - args.beta2);
    const at::Tensor decayed = p * (1 - args.lr * args.weight_decay[i]);
    const at::Tensor root = new_v.sqrt() / correction2_sqrt;
    const at::Tensor direction = args.rule == AdamRule::atan2 ? at::atan2(new_m, root) : new_m / (root + args.eps);
    const at::Tensor new_p = decayed - rate * direction;
    if (args.update_ratio.defined()) {
      moved = moved + squares(new_p - p);
      size = size + squares(p);
    }
    assign(p, new_p);
    assign(m, new_m);
    assign(v, new_v);
    if (!args.averages.empty()) {
      const at::Tensor& average = args.averages[i];
      assign(average, at::lerp(average, new_p, 1 - args.average_decay));
    }
    if (has_copy(args, i)) assign(args.copies[i], new_p.to(args.copies[i].scalar_type()));
  }
  if (!args.update_ratio.defined()) return;
  const at::Tensor ratio = args.update_ratio.dim() == 0 ? at::sqrt(moved / size) : at::stack({moved, size});
  at::Tensor(args.update_ratio).copy_(at::where(left_out, at::zeros_like(ratio), ratio));
}

}  // namespace hrm::ops::reference

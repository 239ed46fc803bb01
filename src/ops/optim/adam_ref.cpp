// The readable version, and the oracle of the CPU's and the GPU's kernel.
#include <ATen/ATen.h>

#include "ops/optim/adam_impl.h"

namespace hrm::ops::reference {
namespace {

// What Adam's bias corrections make of the step.
struct Corrections {
  at::Tensor first, second_sqrt;  // 1 - beta1^t, sqrt(1 - beta2^t)
};

struct NewValues {
  at::Tensor p, m, v;  // moments that the rule lacks are undefined
};

NewValues adam_values(const AdamArgs& args, size_t i, const at::Tensor& lr, const Corrections& corrections) {
  const at::Tensor& p = args.params[i];
  const at::Tensor g = args.grads[i] * args.grad_scale;
  const at::Tensor m = at::lerp(args.exp_avgs[i], g, 1 - args.beta1);
  const at::Tensor v = args.exp_avg_sqs[i] * args.beta2 + g * g * (1 - args.beta2);
  const at::Tensor root = v.sqrt() / corrections.second_sqrt;
  const at::Tensor direction = args.rule == AdamRule::atan2 ? at::atan2(m, root) : m / (root + args.eps);
  return {p * (1 - lr * args.weight_decay[i]) - lr / corrections.first * direction, m, v};
}

NewValues new_values(const AdamArgs& args, size_t i, const Corrections& corrections) {
  const at::Tensor lr = args.lr * lr_factor(args, i);
  if (has_second_moment(args.rule)) return adam_values(args, i, lr, corrections);
  const at::Tensor& p = args.params[i];
  const double wd = args.weight_decay[i];
  const at::Tensor decayed = p * (1 - lr * wd);
  if (args.rule == AdamRule::muon_apply) return {decayed - lr * args.grads[i], {}, {}};

  const at::Tensor g = args.grads[i] * args.grad_scale;
  const at::Tensor& m = args.exp_avgs[i];
  if (args.rule == AdamRule::lion) {
    const at::Tensor blend = m * args.beta1 + g * (1 - args.beta1);
    return {decayed - lr * blend.sign(), at::lerp(m, g, 1 - args.beta2), {}};
  }
  if (args.rule == AdamRule::sgd) {
    const at::Tensor d = g + p * wd;
    const at::Tensor new_m = m * args.beta1 + d;
    return {p - lr * (d + new_m * args.beta1), new_m, {}};
  }
  const at::Tensor new_m = at::lerp(m, g, 1 - args.beta1);  // muon_direction
  return {at::lerp(g, new_m, args.beta1), new_m, {}};
}

}  // namespace

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
  const Corrections corrections{(1 - at::pow(args.beta1, t)).to(at::kFloat),
                                at::sqrt(1 - at::pow(args.beta2, t)).to(at::kFloat)};
  const auto squares = [](const at::Tensor& values) {
    const at::Tensor norm = at::linalg_vector_norm(values, 2, std::nullopt, /*keepdim=*/false, at::kDouble);
    return norm * norm;
  };
  at::Tensor moved = at::zeros({}, args.step.options().dtype(at::kDouble)), size = moved;
  for (size_t i = 0; i < args.params.size(); ++i) {
    const at::Tensor& p = args.params[i];
    const auto [new_p, new_m, new_v] = new_values(args, i, corrections);
    if (args.update_ratio.defined()) {
      moved = moved + squares(new_p - p);
      size = size + squares(p);
    }
    assign(p, new_p);
    if (new_m.defined()) assign(args.exp_avgs[i], new_m);
    if (new_v.defined()) assign(args.exp_avg_sqs[i], new_v);
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

#include "hrm/ops/adam_atan2.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "ops/adam_atan2_impl.h"

namespace hrm::ops {
namespace {

void check_scalar(const char* name, const at::Tensor& tensor, at::Device device) {
  TORCH_CHECK(tensor.dim() == 0 && tensor.scalar_type() == at::kFloat && tensor.device() == device,
              "hrm::adam_atan2_: ", name, " must be a 0-dim float32 tensor on ", device, ", got shape ", tensor.sizes(),
              ", ", tensor.scalar_type(), " on ", tensor.device());
}

void check_member(const char* list, size_t i, const at::Tensor& tensor, const at::Tensor& param) {
  TORCH_CHECK(tensor.sizes() == param.sizes(), "hrm::adam_atan2_: ", list, "[", i, "] has shape ", tensor.sizes(),
              ", params[", i, "] has ", param.sizes());
  TORCH_CHECK(tensor.scalar_type() == at::kFloat && tensor.is_contiguous() && tensor.device() == param.device(),
              "hrm::adam_atan2_: ", list, "[", i, "] of shape ", tensor.sizes(), " must be contiguous float32 on ",
              param.device(), ", got ", tensor.scalar_type(), " with strides ", tensor.strides(), " on ",
              tensor.device());
}

}  // namespace

void check_adam_atan2(const AdamAtan2Args& args) {
  const size_t count = args.params.size();
  TORCH_CHECK(args.grads.size() == count && args.exp_avgs.size() == count && args.exp_avg_sqs.size() == count &&
                  args.weight_decay.size() == count,
              "hrm::adam_atan2_: the lists must have one length, got ", count, " params, ", args.grads.size(),
              " grads, ", args.exp_avgs.size(), " exp_avgs, ", args.exp_avg_sqs.size(), " exp_avg_sqs and ",
              args.weight_decay.size(), " weight decays");
  const at::Device device = args.step.device();
  check_scalar("step", args.step, device);
  check_scalar("lr", args.lr, device);
  check_scalar("grad_scale", args.grad_scale, device);
  check_scalar("skip", args.skip, device);
  for (const double beta : {args.beta1, args.beta2}) {
    TORCH_CHECK(beta >= 0 && beta < 1, "hrm::adam_atan2_: a beta must lie in [0, 1), got ", beta);
  }
  for (size_t i = 0; i < count; ++i) {
    TORCH_CHECK(args.params[i].device() == device, "hrm::adam_atan2_: params[", i, "] of shape ",
                args.params[i].sizes(), " is on ", args.params[i].device(), ", step on ", device);
    check_member("params", i, args.params[i], args.params[i]);
    check_member("grads", i, args.grads[i], args.params[i]);
    check_member("exp_avgs", i, args.exp_avgs[i], args.params[i]);
    check_member("exp_avg_sqs", i, args.exp_avg_sqs[i], args.params[i]);
  }
}

void adam_atan2_(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                 const at::Tensor& step, const at::Tensor& lr, double beta1, double beta2,
                 at::ArrayRef<double> weight_decay, const at::Tensor& grad_scale, const at::Tensor& skip) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("hrm::adam_atan2_", "")
          .typed<void(at::TensorList, at::TensorList, at::TensorList, at::TensorList, const at::Tensor&,
                      const at::Tensor&, double, double, at::ArrayRef<double>, const at::Tensor&, const at::Tensor&)>();
  op.call(params, grads, exp_avgs, exp_avg_sqs, step, lr, beta1, beta2, weight_decay, grad_scale, skip);
}

namespace {

void adam_atan2_cpu(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                    const at::Tensor& step, const at::Tensor& lr, double beta1, double beta2,
                    at::ArrayRef<double> weight_decay, const at::Tensor& grad_scale, const at::Tensor& skip) {
  const AdamAtan2Args args{params, grads, exp_avgs,     exp_avg_sqs, step, lr,
                           beta1,  beta2, weight_decay, grad_scale,  skip};
  check_adam_atan2(args);
  reference::adam_atan2_(args);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "adam_atan2_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, "
      "Tensor(d!) step, Tensor lr, float beta1, float beta2, float[] weight_decay, Tensor grad_scale, Tensor skip) "
      "-> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("adam_atan2_", &adam_atan2_cpu);
}

}  // namespace hrm::ops

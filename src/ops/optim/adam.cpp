#include "hrm/ops/adam.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "hrm/ops/backend.h"
#include "ops/common/op.h"
#include "ops/common/optional_tensor.h"
#include "ops/optim/adam_impl.h"

namespace hrm::ops {
namespace {

void check_step_scalar(const char* name, const at::Tensor& tensor, at::ScalarType type, at::Device device) {
  TORCH_CHECK(tensor.dim() == 0 && tensor.scalar_type() == type && tensor.device() == device, "hrm::adam_: ", name,
              " must be a 0-dim ", type, " tensor on ", device, ", got shape ", tensor.sizes(), ", ",
              tensor.scalar_type(), " on ", tensor.device());
}

void check_member(const char* list, size_t i, const at::Tensor& tensor, const at::Tensor& param) {
  TORCH_CHECK(tensor.sizes() == param.sizes(), "hrm::adam_: ", list, "[", i, "] has shape ", tensor.sizes(),
              ", params[", i, "] has ", param.sizes());
  TORCH_CHECK(tensor.scalar_type() == at::kFloat && tensor.is_contiguous() && tensor.device() == param.device(),
              "hrm::adam_: ", list, "[", i, "] of shape ", tensor.sizes(), " must be contiguous float32 on ",
              param.device(), ", got ", tensor.scalar_type(), " with strides ", tensor.strides(), " on ",
              tensor.device());
}

void check_copy(size_t i, const at::Tensor& copy, const at::Tensor& param) {
  TORCH_CHECK(copy.sizes() == param.sizes() && copy.is_contiguous() && copy.device() == param.device() &&
                  (copy.scalar_type() == at::kBFloat16 || copy.scalar_type() == at::kHalf),
              "hrm::adam_: copies[", i, "] must be params[", i, "] itself or a contiguous bfloat16 or float16 tensor ",
              "of shape ", param.sizes(), " on ", param.device(), ", got ", copy.scalar_type(), " of shape ",
              copy.sizes(), " with strides ", copy.strides(), " on ", copy.device());
}

}  // namespace

void check_adam(const AdamArgs& args) {
  const size_t count = args.params.size();
  const auto rule = static_cast<int>(args.rule);
  TORCH_CHECK(rule >= 0 && rule < kAdamRules, "hrm::adam_: there is no rule ", rule);
  const bool first = has_first_moment(args.rule), second = has_second_moment(args.rule);
  const auto optional = [count](const auto& list) { return list.empty() || list.size() == count; };
  TORCH_CHECK(args.grads.size() == count && args.exp_avgs.size() == (first ? count : 0) &&
                  args.exp_avg_sqs.size() == (second ? count : 0) && args.weight_decay.size() == count &&
                  optional(args.lr_factor) && optional(args.averages) && optional(args.copies),
              "hrm::adam_: the lists must have one length", first && second ? "" : ", those of moments that rule ",
              first && second ? "" : std::to_string(rule), first && second ? "" : " lacks none", ", got ", count,
              " params, ", args.grads.size(), " grads, ", args.exp_avgs.size(), " exp_avgs, ", args.exp_avg_sqs.size(),
              " exp_avg_sqs, ", args.averages.size(), " averages, ", args.copies.size(), " copies, ",
              args.weight_decay.size(), " weight decays and ", args.lr_factor.size(), " rate factors");
  const at::Device device = args.step.device();
  check_step_scalar("step", args.step, at::kFloat, device);
  check_step_scalar("lr", args.lr, at::kFloat, device);
  check_step_scalar("grad_scale", args.grad_scale, at::kFloat, device);
  check_step_scalar("skip", args.skip, at::kFloat, device);
  if (const at::Tensor& ratio = args.update_ratio; ratio.defined()) {
    const bool squares = ratio.dim() == 1 && ratio.numel() == 2 && ratio.is_contiguous();
    TORCH_CHECK((ratio.dim() == 0 || squares) && ratio.scalar_type() == at::kDouble && ratio.device() == device,
                "hrm::adam_: update_ratio must be a 0-dim Double tensor or two contiguous values on ", device,
                ", got shape ", ratio.sizes(), ", ", ratio.scalar_type(), " on ", ratio.device());
  }
  for (const double beta : {args.beta1, args.beta2}) {
    TORCH_CHECK(beta >= 0 && beta < 1, "hrm::adam_: a beta must lie in [0, 1), got ", beta);
  }
  TORCH_CHECK(args.averages.empty() || (args.average_decay >= 0 && args.average_decay < 1),
              "hrm::adam_: average_decay must lie in [0, 1), got ", args.average_decay);
  for (size_t i = 0; i < count; ++i) {
    TORCH_CHECK(args.params[i].device() == device, "hrm::adam_: params[", i, "] of shape ", args.params[i].sizes(),
                " is on ", args.params[i].device(), ", step on ", device);
    check_member("params", i, args.params[i], args.params[i]);
    check_member("grads", i, args.grads[i], args.params[i]);
    if (first) check_member("exp_avgs", i, args.exp_avgs[i], args.params[i]);
    if (second) check_member("exp_avg_sqs", i, args.exp_avg_sqs[i], args.params[i]);
    if (!args.averages.empty()) check_member("averages", i, args.averages[i], args.params[i]);
    if (has_copy(args, i)) check_copy(i, args.copies[i], args.params[i]);
  }
}

void adam_(const AdamArgs& args) {
  static const Op<AdamSignature> op("hrm::adam_");
  op(static_cast<int64_t>(args.rule), args.params, args.grads, args.exp_avgs, args.exp_avg_sqs, args.averages,
     args.copies, args.weight_decay, args.lr_factor, args.step, args.lr, args.grad_scale, args.skip,
     optional_tensor(args.update_ratio), args.beta1, args.beta2, args.eps, args.average_decay);
}

namespace {

void adam_cpu(const AdamArgs& args) {
  check_adam(args);
  if (backend() == Backend::reference) return reference::adam_(args);
  cpu::adam_(args);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "adam_(int rule, Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, "
      "Tensor(d!)[] averages, Tensor(e!)[] copies, float[] weight_decay, float[] lr_factor, Tensor(f!) step, "
      "Tensor lr, Tensor grad_scale, Tensor skip, Tensor(g!)? update_ratio, float beta1, float beta2, float eps, "
      "float average_decay) -> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("adam_", &adam_kernel<adam_cpu>);
}

}  // namespace hrm::ops

#include "hrm/nn/norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "hrm/base/error.h"
#include "ops/common/accumulate_type.h"

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Reshapes rows to (..., groups, width / groups).
at::Tensor in_groups(const at::Tensor& x, int64_t groups) {
  return x.unflatten(-1, {groups, x.size(-1) / groups});
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps,
                            int64_t dtype, int64_t groups) {
    const at::Tensor wide = in_groups(x.to(ops::accumulate_type(x)), groups);
    const at::Tensor rstd = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps);
    ctx->save_for_backward({x, weight, rstd});
    ctx->saved_data["groups"] = groups;
    return (wide * rstd).flatten(-2).mul_(weight).to(static_cast<at::ScalarType>(dtype));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2];
    const int64_t groups = ctx->saved_data["groups"].toInt();
    const at::Tensor normed = in_groups(x.to(ops::accumulate_type(x)), groups) * rstd;
    const at::Tensor grad = grads[0].to(ops::accumulate_type(x));
    at::Tensor grad_weight;
    if (weight.requires_grad()) grad_weight = (grad * normed.flatten(-2)).reshape({-1, weight.size(0)}).sum(0);
    const at::Tensor grad_normed = in_groups(grad * weight, groups);
    const at::Tensor along = (grad_normed * normed).mean(-1, /*keepdim=*/true);
    const at::Tensor grad_x = ((grad_normed - normed * along) * rstd).flatten(-2).to(x.scalar_type());
    return {grad_x, grad_weight, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

LayerNorm::LayerNorm(int64_t width, double eps, at::Device device) : eps_(eps) {
  weight_ = register_parameter("weight", at::empty({width}, at::device(device)));
  bias_ = register_parameter("bias", at::empty({width}, at::device(device)));
}

at::Tensor LayerNorm::forward(const at::Tensor& x) const {
  return at::layer_norm(x.to(ops::accumulate_type(x)), {x.size(-1)}, weight_, bias_, eps_).to(x.scalar_type());
}

void LayerNorm::init_own(uint64_t, const std::string&) {
  weight_.fill_(1);
  bias_.zero_();
}

RmsNorm::RmsNorm(int64_t width, double eps, at::Device device, int64_t groups, bool centred)
    : eps_(eps), groups_(groups), centred_(centred) {
  require(groups > 0 && width % groups == 0, ExitCode::usage, "a norm over ", groups,
          " groups needs a width divisible by ", groups, ", not ", width);
  weight_ = register_parameter("weight", at::empty({width}, at::device(device)));
}

at::Tensor RmsNorm::forward(const at::Tensor& x) const {
  return forward(x, x.scalar_type());
}

ops::NormedStream RmsNorm::forward_stream(const at::Tensor& x) const {
  require(groups_ == 1, ExitCode::unexpected, "a norm over ", groups_,
          " groups has no forward_stream(); use forward()");
  return ops::weighted_rms_norm_stream(x, scale(), eps_);
}

at::Tensor RmsNorm::forward(const at::Tensor& x, at::ScalarType dtype) const {
  return rms_norm(x, scale(), eps_, dtype, groups_);
}

void RmsNorm::init_own(uint64_t, const std::string&) {
  weight_.fill_(centred_ ? 0 : 1);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType dtype, int64_t groups) {
  if (groups == 1 && dtype == x.scalar_type()) return ops::weighted_rms_norm(x, weight, eps);
  return RmsNormFunction::apply(x, weight, eps, static_cast<int64_t>(dtype), groups);
}

}  // namespace hrm::nn

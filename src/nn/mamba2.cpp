#include "hrm/nn/mamba2.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "hrm/base/error.h"
#include "hrm/base/philox.h"
#include "hrm/ops/selective_scan.h"
#include "ops/common/accumulate_type.h"

namespace hrm::nn {

// Depthwise; holds `weight` (C, 1, K) and `bias` (C) under their published names.
struct Mamba2Mixer::Conv1d : torch::nn::Module {
  Conv1d(int64_t channels, int64_t kernel, bool with_bias, at::Device device)
      : weight(register_parameter("weight", at::empty({channels, 1, kernel}, at::device(device)))) {
    if (with_bias) bias = register_parameter("bias", at::empty({channels}, at::device(device)));
  }
  at::Tensor weight, bias;
};

Mamba2Mixer::Mamba2Mixer(const Mamba2Options& options, at::Device device) : options_(options) {
  const Mamba2Options& o = options;
  require(o.inner() % o.head_dim == 0 && o.heads() % o.groups == 0 && o.inner() % o.groups == 0, ExitCode::usage,
          "a Mamba2 block of width ", o.width, " times ", o.expand, " cannot be split into heads of ", o.head_dim,
          " channels in ", o.groups, " groups; choose sizes that divide");
  require(o.dt_min >= 0 && o.dt_min <= o.dt_max, ExitCode::usage, "the limits of Mamba2's time step are ", o.dt_min,
          " and ", o.dt_max, "; the first must be at least 0 and at most the second");
  in_proj_ = register_module("in_proj",
                             std::make_shared<Linear>(o.width, o.inner() + o.channels() + o.heads(), device, o.bias));
  conv1d_ = register_module("conv1d", std::make_shared<Conv1d>(o.channels(), o.kernel, o.conv_bias, device));
  norm_ = register_module("norm", std::make_shared<RmsNorm>(o.inner(), o.eps, device, o.groups));
  out_proj_ = register_module("out_proj", std::make_shared<Linear>(o.inner(), o.width, device, o.bias));
  dt_bias_ = register_parameter("dt_bias", at::empty({o.heads()}, at::device(device)));
  A_log_ = register_parameter("A_log", at::empty({o.heads()}, at::device(device)));
  D_ = register_parameter("D", at::empty({o.heads()}, at::device(device)));
}

void Mamba2Mixer::init_own(uint64_t seed, const std::string& name) {
  const int64_t heads = options_.heads();
  A_log_.copy_(at::arange(1, heads + 1, at::kDouble).log());
  D_.fill_(1);
  // softplus(dt_bias) = dt.
  CounterRng draws(seed, Stream::init, hash_name(name + ".dt_bias"));
  std::vector<double> bias;
  for (int64_t h = 0; h < heads; ++h) {
    const double unit = static_cast<double>(draws.uniform());
    const double dt = std::max(std::exp(unit * (std::log(0.1) - std::log(1e-3)) + std::log(1e-3)), 1e-4);
    bias.push_back(dt + std::log(-std::expm1(-dt)));
  }
  dt_bias_.copy_(at::tensor(bias, at::kDouble));
}

Mamba2State Mamba2Mixer::make_state(int64_t rows, at::ScalarType dtype) const {
  const Mamba2Options& o = options_;
  const at::ScalarType wide = ops::accumulate_type(dtype);
  const at::Device device = A_log_.device();
  return {.conv = at::zeros({rows, o.channels(), o.kernel}, at::device(device).dtype(dtype)),
          .ssm = at::zeros({rows, o.heads(), o.head_dim, o.state}, at::device(device).dtype(wide))};
}

at::Tensor Mamba2Mixer::convolve(const at::Tensor& input, Mamba2State* state) const {
  const int64_t K = options_.kernel, T = input.size(1);
  const at::Tensor columns = input.transpose(1, 2);  // (B, C, T)
  at::Tensor padded;                                 // with the K - 1 columns before the first
  if (state != nullptr) {
    const at::Tensor all = at::cat({state->conv, columns}, -1);
    padded = all.narrow(-1, 1, K - 1 + T);
    state->conv.copy_(all.narrow(-1, T, K));
  } else {
    padded = at::constant_pad_nd(columns, {K - 1, 0});
  }
  const auto bias = conv1d_->bias.defined() ? std::optional(conv1d_->bias.to(input.scalar_type())) : std::nullopt;
  const int64_t one[] = {1}, none[] = {0};
  const at::Tensor out = at::conv1d(padded, conv1d_->weight.to(input.scalar_type()), bias, /*stride=*/one,
                                    /*padding=*/none, /*dilation=*/one, options_.channels());
  return out.transpose(1, 2);
}

at::Tensor Mamba2Mixer::forward(const at::Tensor& u, const at::Tensor& mask, Mamba2State* state,
                                Mamba2Trace* trace) const {
  const Mamba2Options& o = options_;
  const at::ScalarType wide = ops::accumulate_type(u);
  const at::Tensor keep = mask.defined() ? mask.unsqueeze(-1).to(u.scalar_type()) : at::Tensor();
  const at::Tensor projected = in_proj_->forward(keep.defined() ? u * keep : u);
  const auto parts = projected.split_with_sizes({o.inner(), o.channels(), o.heads()}, -1);
  at::Tensor c = at::silu(convolve(parts[1], state));
  if (keep.defined()) c = c * keep;
  const auto xbc = c.split_with_sizes({o.inner(), o.groups * o.state, o.groups * o.state}, -1);
  at::Tensor dt = at::softplus(parts[2].to(wide) + dt_bias_);
  if (o.dt_min > 0 || std::isfinite(o.dt_max)) dt = dt.clamp(o.dt_min, o.dt_max);

  const auto initial = state != nullptr ? std::optional(state->ssm) : std::nullopt;
  const auto [y, final_state] =
      ops::ssd_scan(xbc[0].unflatten(-1, {o.heads(), o.head_dim}), dt, at::exp(A_log_).neg(),
                    xbc[1].unflatten(-1, {o.groups, o.state}), xbc[2].unflatten(-1, {o.groups, o.state}), D_,
                    std::min(o.chunk, u.size(1)), initial);
  if (state != nullptr) state->ssm.copy_(final_state);
  const at::Tensor scanned = y.flatten(-2);
  const at::Tensor normed = norm_->forward(scanned.to(wide) * at::silu(parts[0].to(wide)), u.scalar_type());
  if (trace != nullptr) *trace = {projected, c, dt, scanned, normed};
  return out_proj_->forward(normed);
}

Mamba2Block::Mamba2Block(const Mamba2Options& options, at::Device device) {
  norm_ = register_module("norm", std::make_shared<RmsNorm>(options.width, options.eps, device));
  mixer_ = register_module("mixer", std::make_shared<Mamba2Mixer>(options, device));
}

at::Tensor Mamba2Block::forward(const at::Tensor& r, const at::Tensor& mask, at::ScalarType dtype,
                                Mamba2State* state) const {
  const at::Tensor input = gradient_ready_ ? gradient_ready_->mark(r, gradient_group_) : r;
  return input + mixer_->forward(norm_->forward(input, dtype), mask, state);
}

}  // namespace hrm::nn

#include "hrm/nn/rotary.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "hrm/base/error.h"

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Writes `from` rotated by +angle or -angle to `to`, both (B, L, n, heads, head_dim); they may be the same tensor.
void rotate(const at::Tensor& from, const at::Tensor& to, const RotaryTable& table, double sign) {
  const int64_t half = from.size(-1) / 2;
  const at::Tensor a = from.narrow(-1, 0, half), b = from.narrow(-1, half, half);
  const at::Tensor c = table.cos.view({-1, 1, 1, half}), s = table.sin.view({-1, 1, 1, half});
  // The tables are float32, so the products are too, for any dtype of `from`.
  const at::Tensor first = at::mul(a, c).addcmul_(b, s, -sign);
  const at::Tensor second = at::mul(b, c).addcmul_(a, s, sign);
  to.narrow(-1, 0, half).copy_(first);
  to.narrow(-1, half, half).copy_(second);
}

struct SplitAndRotate : torch::autograd::Function<SplitAndRotate> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& qkv, int64_t heads, const RotaryTable& table) {
    const int64_t head_dim = qkv.size(2) / (3 * heads);
    const at::Tensor parts = qkv.detach().view({qkv.size(0), qkv.size(1), 3, heads, head_dim});
    if (table.defined()) {
      const at::Tensor qk = parts.narrow(2, 0, 2);
      rotate(qk, qk, table, 1);
      ctx->save_for_backward({table.cos, table.sin});
    }
    return {parts.select(2, 0).transpose(1, 2), parts.select(2, 1).transpose(1, 2), parts.select(2, 2).transpose(1, 2)};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const RotaryTable table = saved.empty() ? RotaryTable{} : RotaryTable{saved[0], saved[1]};
    const int64_t B = grads[0].size(0), heads = grads[0].size(1), L = grads[0].size(2), head_dim = grads[0].size(3);
    const at::Tensor out = at::empty({B, L, 3, heads, head_dim}, grads[0].options());
    for (int64_t part = 0; part < 3; ++part) {
      const at::Tensor grad = grads[part].transpose(1, 2).unsqueeze(2);
      const at::Tensor to = out.narrow(2, part, 1);
      if (part < 2 && table.defined()) {
        rotate(grad, to, table, -1);
      } else {
        to.copy_(grad);
      }
    }
    return {out.view({B, L, 3 * heads * head_dim}), at::Tensor(), at::Tensor()};
  }
};

// Pairs that turn slowly are divided by the factor, fast ones are kept, those between are blended.
at::Tensor llama3_frequencies(const at::Tensor& frequency, const RopeScaling& s) {
  const at::Tensor length = (2 * std::numbers::pi) / frequency;
  const double longest = s.original_positions / s.low_freq_factor, shortest = s.original_positions / s.high_freq_factor;
  const at::Tensor share =
      (s.original_positions / length - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  const at::Tensor blended = (1 - share) * frequency / s.factor + share * frequency;
  const at::Tensor slow_or_fast = at::where(length > longest, frequency / s.factor, frequency);
  return at::where((length < shortest).logical_or(length > longest), slow_or_fast, blended);
}

// The same by pairs that turn beta_fast or beta_slow times within the original length, with a ramp between them.
at::Tensor yarn_frequencies(const at::Tensor& power, int64_t head_dim, double theta, const RopeScaling& s) {
  const auto width = static_cast<double>(head_dim);
  const auto pair_of = [&](double turns) {
    return width * std::log(s.original_positions / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = pair_of(s.beta_fast), high = pair_of(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  if (low == high) high += 0.001;
  const at::Tensor ramp = ((at::arange(head_dim / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const at::Tensor kept = 1 - ramp;
  return (power * s.factor).reciprocal() * (1 - kept) + power.reciprocal() * kept;
}

}  // namespace

at::Tensor rotary_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling) {
  require(head_dim % 2 == 0, ExitCode::usage, "rotary positions need an even head width, not ", head_dim,
          " (model.hidden_size / model.num_heads)");
  // In float32 on the CPU, like the reference implementation, so that the tables are the same on every device.
  const at::Tensor exponent = at::arange(0, head_dim, 2, at::kFloat).div_(static_cast<double>(head_dim));
  const at::Tensor power = at::pow(at::scalar_tensor(theta, at::kFloat), exponent);
  const at::Tensor frequency = power.reciprocal();
  switch (scaling.kind) {
    case RopeKind::linear:
      return frequency / scaling.factor;
    case RopeKind::llama3:
      return llama3_frequencies(frequency, scaling);
    case RopeKind::yarn:
      return yarn_frequencies(power, head_dim, theta, scaling);
    default:
      return frequency;
  }
}

RotaryTable make_rotary_table(int64_t positions, int64_t head_dim, double theta, at::Device device,
                              const RopeScaling& scaling) {
  const at::Tensor frequency = rotary_frequencies(head_dim, theta, scaling);
  const at::Tensor angle = at::outer(at::arange(positions, at::kFloat), frequency);
  at::Tensor cos = angle.cos(), sin = angle.sin();
  if (scaling.attention_factor != 1) {
    cos = cos * scaling.attention_factor;
    sin = sin * scaling.attention_factor;
  }
  return {cos.to(device), sin.to(device)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> split_and_rotate_(const at::Tensor& qkv, int64_t heads,
                                                                 const RotaryTable& table) {
  const variable_list parts = SplitAndRotate::apply(qkv, heads, table);
  return {parts[0], parts[1], parts[2]};
}

}  // namespace hrm::nn

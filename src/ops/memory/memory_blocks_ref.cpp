#include <ATen/ATen.h>

#include <cmath>

#include "ops/memory/memory_blocks_impl.h"

namespace hrm::ops::reference {
namespace {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(weight.scalar_type());
  const at::Tensor factor = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps);
  return (wide * factor * weight).to(x.scalar_type());
}

}  // namespace

std::vector<at::Tensor> memory_blocks(const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos,
                                      const std::vector<MemoryBlockWeights>& blocks, const at::Tensor& norm,
                                      const MemoryBlocksOptions& options, bool save) {
  const int64_t head_dim = state.size(2) / options.heads;
  const at::ScalarType wide = norm.scalar_type();
  std::vector<std::vector<at::Tensor>> stacks(1 + 6 * blocks.size());
  const auto keep = [&](size_t stack, const at::Tensor& value) {
    if (save) stacks[stack].push_back(value);
  };
  at::Tensor y = state;
  for (int64_t step = 0; step < options.steps; ++step) {
    at::Tensor x = (y + extra.unsqueeze(1)) + pos;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const MemoryBlockWeights& w = blocks[i];
      const at::Tensor qkv = at::linear(rms_norm(x, w.attention_norm, options.eps), w.qkv);
      const std::vector<at::Tensor> parts = qkv.unflatten(-1, {3, options.heads, head_dim}).unbind(2);
      const auto heads = [&](size_t part, const at::Tensor& weight) {
        return (weight.defined() ? rms_norm(parts[part], weight, options.eps) : parts[part]).transpose(1, 2);
      };
      const at::Tensor scores =
          at::matmul(heads(0, w.q_norm), heads(1, w.k_norm).transpose(-2, -1)).to(wide) / std::sqrt(head_dim);
      const at::Tensor mixed =
          at::matmul(at::softmax(scores, -1).to(x.scalar_type()), heads(2, {})).transpose(1, 2).flatten(-2);
      const at::Tensor h = x + at::linear(mixed, w.o);
      const at::Tensor gate_up = at::linear(rms_norm(h, w.mlp_norm, options.eps), w.gate_up);
      const std::vector<at::Tensor> halves = gate_up.chunk(2, -1);
      const std::vector<at::Tensor> saved{x, qkv, mixed, at::logsumexp(scores, -1), h, gate_up};
      for (size_t k = 0; k < saved.size(); ++k) keep(1 + 6 * i + k, saved[k]);
      x = h + at::linear(at::silu(halves[0]) * halves[1], w.down);
    }
    keep(0, x);
    y = rms_norm(x, norm, options.eps);
  }
  std::vector<at::Tensor> out{y};
  for (const auto& stack : stacks) {
    if (save) out.push_back(at::stack(stack));
  }
  return out;
}

}  // namespace hrm::ops::reference

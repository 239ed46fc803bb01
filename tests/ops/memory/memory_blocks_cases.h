#pragma once
// Checks of the blocks over memories that hold on every device.

#include <cmath>

#include "hrm/ops/memory_blocks.h"
#include "ops/memory/memory_blocks_impl.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct MemoryBlocksCase {
  int64_t memories, length, width, inner, heads, blocks, steps;
  bool qk_norm = false;
};

inline std::string name_of(at::ScalarType dtype, const MemoryBlocksCase& c) {
  return cat(dtype, ", ", c.memories, " x ", c.length, ", width ", c.width, ", inner ", c.inner, ", heads ", c.heads,
             ", ", c.blocks, " blocks, ", c.steps, " steps", c.qk_norm ? ", q and k normalised" : "");
}

struct MemoryInput {
  at::Tensor state, extra, pos, norm, grad;
  std::vector<MemoryBlockWeights> blocks;
  MemoryBlocksOptions options;

  // Leaves in another precision; float32 norms stay so beside 16-bit products.
  MemoryInput to(at::ScalarType dtype) const {
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const auto leaf = [](const at::Tensor& t, at::ScalarType type) {
      return t.defined() ? t.detach().to(type, false, /*copy=*/true).requires_grad_() : at::Tensor();
    };
    MemoryInput out{leaf(state, dtype),
                    leaf(extra, dtype),
                    leaf(pos, dtype),
                    leaf(norm, wide),
                    grad.to(dtype),
                    std::vector<MemoryBlockWeights>(),
                    options};
    for (const MemoryBlockWeights& w : blocks) {
      out.blocks.push_back({leaf(w.attention_norm, wide), leaf(w.mlp_norm, wide), leaf(w.q_norm, wide),
                            leaf(w.k_norm, wide), leaf(w.qkv, dtype), leaf(w.o, dtype), leaf(w.gate_up, dtype),
                            leaf(w.down, dtype)});
    }
    return out;
  }

  // Every leaf with its name.
  std::vector<std::pair<std::string, at::Tensor>> leaves() const {
    std::vector<std::pair<std::string, at::Tensor>> all{
        {"state", state}, {"extra", extra}, {"pos", pos}, {"norm", norm}};
    for (size_t i = 0; i < blocks.size(); ++i) {
      const MemoryBlockWeights& w = blocks[i];
      const std::string block = cat("block ", i, " ");
      all.insert(all.end(), {{block + "attention_norm", w.attention_norm}, {block + "mlp_norm", w.mlp_norm}});
      if (w.q_norm.defined()) all.insert(all.end(), {{block + "q_norm", w.q_norm}, {block + "k_norm", w.k_norm}});
      all.insert(
          all.end(),
          {{block + "qkv", w.qkv}, {block + "o", w.o}, {block + "gate_up", w.gate_up}, {block + "down", w.down}});
    }
    return all;
  }
};

// Numbers of `dtype`, so that all precisions begin with the same ones.
inline MemoryInput memory_input(const MemoryBlocksCase& c, at::ScalarType dtype, at::Device device = at::kCPU) {
  uint64_t seed = 0;
  const auto draw = [&](at::IntArrayRef sizes, double scale) {
    return normal(sizes, ++seed, at::kFloat, device).mul_(scale).to(dtype);
  };
  const auto norm = [&](int64_t width) { return normal({width}, ++seed, at::kFloat, device).mul_(0.1).add_(1); };
  const auto matrix = [&](int64_t out, int64_t in) { return draw({out, in}, 1 / std::sqrt(static_cast<double>(in))); };
  const int64_t D = c.width, hd = D / c.heads;
  MemoryInput input{.state = draw({c.memories, c.length, D}, 1),
                    .extra = draw({c.memories, D}, 0.5),
                    .pos = draw({c.length, D}, 0.5),
                    .norm = norm(D),
                    .grad = draw({c.memories, c.length, D}, 1),
                    .blocks = {},
                    .options = {.heads = c.heads, .steps = c.steps, .eps = 1e-6}};
  for (int64_t i = 0; i < c.blocks; ++i) {
    input.blocks.push_back({.attention_norm = norm(D),
                            .mlp_norm = norm(D),
                            .q_norm = c.qk_norm ? norm(hd) : at::Tensor(),
                            .k_norm = c.qk_norm ? norm(hd) : at::Tensor(),
                            .qkv = matrix(3 * D, D),
                            .o = matrix(D, D),
                            .gate_up = matrix(2 * c.inner, D),
                            .down = matrix(D, c.inner)});
  }
  return input;
}

struct MemoryResult {
  at::Tensor out;
  std::vector<at::Tensor> grads;  // in the order of leaves()
};

// By the oracle, differentiated by autograd.
inline MemoryResult oracle(const MemoryInput& input) {
  const at::Tensor out = reference::memory_blocks(input.state, input.extra, input.pos, input.blocks, input.norm,
                                                  input.options, /*save=*/false)[0];
  std::vector<at::Tensor> leaves;
  for (const auto& [name, leaf] : input.leaves()) leaves.push_back(leaf);
  return {out.detach(), torch::autograd::grad({out}, leaves, {input.grad})};
}

inline MemoryResult ours(const MemoryInput& input) {
  const at::NoGradGuard no_grad;
  const auto [out, saved] =
      memory_blocks_forward(input.state, input.extra, input.pos, input.blocks, input.norm, input.options);
  std::vector<MemoryBlockWeights> buffers;
  for (const MemoryBlockWeights& w : input.blocks) {
    const auto zeros = [&](const at::Tensor& t) { return at::zeros(t.sizes(), input.norm.options()); };
    buffers.push_back({.attention_norm = {},
                       .mlp_norm = {},
                       .q_norm = {},
                       .k_norm = {},
                       .qkv = zeros(w.qkv),
                       .o = zeros(w.o),
                       .gate_up = zeros(w.gate_up),
                       .down = zeros(w.down)});
  }
  const MemoryBlocksGradients g =
      memory_blocks_backward(input.grad, saved, input.blocks, input.norm, input.options, buffers);
  std::vector<at::Tensor> grads{g.state, g.extra, g.pos, g.norm};
  for (size_t i = 0; i < buffers.size(); ++i) {
    grads.insert(grads.end(), {g.blocks[i].attention_norm, g.blocks[i].mlp_norm});
    if (input.blocks[i].q_norm.defined()) grads.insert(grads.end(), {g.blocks[i].q_norm, g.blocks[i].k_norm});
    grads.insert(grads.end(), {buffers[i].qkv, buffers[i].o, buffers[i].gate_up, buffers[i].down});
  }
  return {out, grads};
}

// Result and gradients against float64, with at most twice the error of plain ATen. `one_kernel`: of a size that takes
// it, with and without saving.
inline void expect_good_memory_blocks(const MemoryBlocksCase& c, at::ScalarType dtype, at::Device device = at::kCPU,
                                      bool one_kernel = false) {
  const std::string what = name_of(dtype, c);
  const MemoryInput input = memory_input(c, dtype, device);
  const MemoryInput leaves = input.to(dtype);
  const MemoryResult found = ours(leaves), plain = oracle(leaves), exact = oracle(input.to(at::kDouble));
  expect_as_good(found.out, plain.out, exact.out, what);
  size_t i = 0;
  for (const auto& [name, leaf] : leaves.leaves()) {
    // Products' gradients are float32 here and of the dtype by autograd.
    const at::ScalarType type = found.grads[i].scalar_type();
    const double terms = dtype == at::kFloat ? 16 * exact.grads[i].abs().max().item<double>() : 0;
    expect_as_good(found.grads[i], plain.grads[i].to(type), exact.grads[i], what + ", gradient of " + name, terms);
    ++i;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor alone = memory_blocks(input.state, input.extra, input.pos, input.blocks, input.norm, input.options);
  if (one_kernel) {
    expect_same_bits(alone, found.out, what + ", nothing saved");
  } else {
    expect_as_good(alone, plain.out, exact.out, what + ", nothing saved");
  }
}

}  // namespace hrm::ops::testing

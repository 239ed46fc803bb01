#include "hrm/ops/memory_blocks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "hrm/ops/attention.h"
#include "hrm/ops/backend.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"
#include "hrm/ops/linear_swiglu.h"
#include "hrm/ops/qkv_heads.h"
#include "hrm/ops/weighted_rms_norm.h"
#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"
#include "ops/memory/memory_blocks_impl.h"

namespace hrm::ops {

void check_memory_blocks(const char* op, const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos,
                         const std::vector<MemoryBlockWeights>& blocks, const at::Tensor& norm,
                         const MemoryBlocksOptions& options) {
  TORCH_CHECK(state.dim() == 3 && state.numel() > 0 && at::isFloatingType(state.scalar_type()), op,
              ": state must be (B, T, D), floating-point and not empty, got ", state.scalar_type(), " of ",
              state.sizes());
  TORCH_CHECK(options.heads > 0 && state.size(2) % options.heads == 0 && options.steps > 0 && options.eps > 0, op,
              ": heads ", options.heads, " must divide the width of state ", state.sizes(), "; steps and eps must be ",
              "positive, got ", options.steps, " and ", options.eps);
  const int64_t B = state.size(0), T = state.size(1), D = state.size(2), hd = D / options.heads;
  const at::ScalarType type = state.scalar_type(), wide = accumulate_type(type);
  const auto check = [&](const at::Tensor& t, const char* name, at::IntArrayRef sizes, at::ScalarType wanted) {
    TORCH_CHECK(t.defined() && t.sizes() == sizes && t.scalar_type() == wanted && t.device() == state.device(), op,
                ": ", name, " must be ", wanted, " of ", sizes, " on ", state.device(), " for a state of ",
                state.sizes(), ", got ", t.defined() ? t.toString() : "nothing", " of ",
                t.defined() ? t.sizes() : at::IntArrayRef());
  };
  check(extra, "extra", {B, D}, type);
  check(pos, "pos", {T, D}, type);
  check(norm, "norm", {D}, wide);
  TORCH_CHECK(!blocks.empty(), op, ": no blocks for a state of ", state.sizes());
  for (const MemoryBlockWeights& w : blocks) {
    TORCH_CHECK(w.down.defined() && w.down.dim() == 2 && w.q_norm.defined() == w.k_norm.defined() &&
                    w.q_norm.defined() == blocks[0].q_norm.defined(),
                op, ": every block needs down (D, F), and q_norm with k_norm in all of them or none");
    const int64_t F = w.down.size(1);
    check(w.attention_norm, "attention_norm", {D}, wide);
    check(w.mlp_norm, "mlp_norm", {D}, wide);
    check(w.qkv, "qkv", {3 * D, D}, type);
    check(w.o, "o", {D, D}, type);
    check(w.gate_up, "gate_up", {2 * F, D}, type);
    check(w.down, "down", {D, F}, type);
    if (!w.q_norm.defined()) continue;
    check(w.q_norm, "q_norm", {hd}, wide);
    check(w.k_norm, "k_norm", {hd}, wide);
  }
}

std::vector<at::Tensor> pack_weights(const std::vector<MemoryBlockWeights>& blocks) {
  std::vector<at::Tensor> packed;
  for (const MemoryBlockWeights& w : blocks) {
    packed.insert(packed.end(), {w.attention_norm, w.mlp_norm, w.qkv, w.o, w.gate_up, w.down});
    if (w.q_norm.defined()) packed.insert(packed.end(), {w.q_norm, w.k_norm});
  }
  return packed;
}

std::vector<MemoryBlockWeights> unpack_weights(at::TensorList weights, bool qk_norm) {
  const size_t each = qk_norm ? 8 : 6;
  TORCH_CHECK(weights.size() % each == 0, "hrm::memory_blocks: a block has ", each, " weights, so ", weights.size(),
              " are not those of some blocks");
  std::vector<MemoryBlockWeights> blocks;
  for (size_t i = 0; i < weights.size(); i += each) {
    MemoryBlockWeights w{.attention_norm = weights[i],
                         .mlp_norm = weights[i + 1],
                         .q_norm = {},
                         .k_norm = {},
                         .qkv = weights[i + 2],
                         .o = weights[i + 3],
                         .gate_up = weights[i + 4],
                         .down = weights[i + 5]};
    if (qk_norm) {
      w.q_norm = weights[i + 6];
      w.k_norm = weights[i + 7];
    }
    blocks.push_back(std::move(w));
  }
  return blocks;
}

at::Tensor normalised_qkv(const at::Tensor& qkv, const MemoryBlockWeights& w, int64_t heads, double eps) {
  if (!w.q_norm.defined()) return qkv;
  const int64_t D = qkv.size(2) / 3;
  const at::Tensor normed =
      qkv_heads_norm(qkv, {heads, heads, D / heads}, {.q_weight = w.q_norm, .k_weight = w.k_norm, .eps = eps});
  return at::cat({normed.flatten(-2), qkv.narrow(-1, 2 * D, D)}, -1);
}

std::vector<at::Tensor> memory_blocks_by_layers(const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos,
                                                const std::vector<MemoryBlockWeights>& blocks, const at::Tensor& norm,
                                                const MemoryBlocksOptions& options, bool save) {
  std::vector<std::vector<at::Tensor>> stacks(1 + 6 * blocks.size());
  at::Tensor y = state;
  for (int64_t step = 0; step < options.steps; ++step) {
    at::Tensor x = at::add(y, extra.unsqueeze(1)).add_(pos);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const MemoryBlockWeights& w = blocks[i];
      const at::Tensor qkv = linear(weighted_rms_norm(x, w.attention_norm, options.eps), w.qkv, w.qkv);
      const at::Tensor heads = normalised_qkv(qkv, w, options.heads, options.eps);
      at::Tensor mixed, lse;
      if (save) {
        std::tie(mixed, lse) = attention_forward(heads, options.heads, at::Tensor(), at::Tensor());
      } else {
        mixed = attention_(heads, options.heads, {}, {});
      }
      const at::Tensor h = linear_add(mixed, w.o, w.o, x);
      const at::Tensor normed = weighted_rms_norm(h, w.mlp_norm, options.eps);
      at::Tensor act, gate_up;
      if (save) {
        std::tie(act, gate_up) = linear_swiglu_forward(normed, w.gate_up);
        const std::vector<at::Tensor> saved{x, qkv, mixed, lse, h, gate_up};
        for (size_t k = 0; k < saved.size(); ++k) stacks[1 + 6 * i + k].push_back(saved[k]);
      } else {
        act = linear_swiglu(normed, w.gate_up);
      }
      x = linear_add(act, w.down, w.down, h);
    }
    if (save) stacks[0].push_back(x);
    y = weighted_rms_norm(x, norm, options.eps);
  }
  std::vector<at::Tensor> out{y};
  for (auto& stack : stacks) {
    if (save) out.push_back(at::stack(stack));
    stack.clear();  // not all of them twice
  }
  return out;
}

at::Tensor memory_blocks(const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos,
                         const std::vector<MemoryBlockWeights>& blocks, const at::Tensor& norm,
                         const MemoryBlocksOptions& options) {
  check_memory_blocks("hrm::memory_blocks", state, extra, pos, blocks, norm, options);
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::TensorList, const at::Tensor&,
                             bool, int64_t, int64_t, double)>
      op("hrm::memory_blocks");
  return op(state, extra, pos, pack_weights(blocks), norm, blocks[0].q_norm.defined(), options.heads, options.steps,
            options.eps);
}

std::tuple<at::Tensor, MemoryBlocksSaved> memory_blocks_forward(const at::Tensor& state, const at::Tensor& extra,
                                                                const at::Tensor& pos,
                                                                const std::vector<MemoryBlockWeights>& blocks,
                                                                const at::Tensor& norm,
                                                                const MemoryBlocksOptions& options) {
  check_memory_blocks("hrm::memory_blocks_forward", state, extra, pos, blocks, norm, options);
  static const Op<std::vector<at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::TensorList,
                                          const at::Tensor&, bool, int64_t, int64_t, double)>
      op("hrm::memory_blocks_forward");
  const std::vector<at::Tensor> out = op(state, extra, pos, pack_weights(blocks), norm, blocks[0].q_norm.defined(),
                                         options.heads, options.steps, options.eps);
  MemoryBlocksSaved saved{.blocks = {}, .last = out[1]};
  for (size_t i = 2; i < out.size(); i += 6) {
    saved.blocks.push_back({out[i], out[i + 1], out[i + 2], out[i + 3], out[i + 4], out[i + 5]});
  }
  return {out[0], std::move(saved)};
}

namespace {

std::vector<at::Tensor> run_memory_blocks_cpu(const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos,
                                              const std::vector<MemoryBlockWeights>& blocks, const at::Tensor& norm,
                                              const MemoryBlocksOptions& options, bool save) {
  const auto run = backend() == Backend::reference ? &reference::memory_blocks : &memory_blocks_by_layers;
  return run(state, extra, pos, blocks, norm, options, save);
}

using CpuKernels = MemoryBlocksKernels<&run_memory_blocks_cpu>;

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "memory_blocks(Tensor state, Tensor extra, Tensor pos, Tensor[] weights, Tensor norm, bool qk_norm, int heads, "
      "int steps, float eps) -> Tensor");
  m.def(
      "memory_blocks_forward(Tensor state, Tensor extra, Tensor pos, Tensor[] weights, Tensor norm, bool qk_norm, "
      "int heads, int steps, float eps) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("memory_blocks", &CpuKernels::last_state);
  m.impl("memory_blocks_forward", &CpuKernels::saving);
}

// Differentiating through these is an error instead of a silently missing gradient.
TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("memory_blocks", torch::autograd::autogradNotImplementedFallback());
  m.impl("memory_blocks_forward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops

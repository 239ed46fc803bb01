#include "hrm/nn/memory_blocks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "hrm/ops/backend.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/memory_blocks.h"

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Weights = std::vector<ops::MemoryBlockWeights>;
using Parts = std::vector<TransformerBlock::PlainParts>;

at::Tensor weight_of(const RmsNorm* norm) {
  return norm == nullptr ? at::Tensor() : norm->weight();
}

// The blocks' norms, and of(linear) for each linear layer: its compute weight, master or gradient buffer.
template <class Of>
Weights weights_of(const Parts& parts, const Of& of) {
  Weights weights;
  for (const TransformerBlock::PlainParts& part : parts) {
    weights.push_back({.attention_norm = part.input_norm->weight(),
                       .mlp_norm = part.mlp_norm->weight(),
                       .q_norm = weight_of(part.q_norm),
                       .k_norm = weight_of(part.k_norm),
                       .qkv = of(*part.qkv_proj),
                       .o = of(*part.o_proj),
                       .gate_up = of(*part.gate_up_proj),
                       .down = of(*part.down_proj)});
  }
  return weights;
}

// All leaves of the blocks in the order in which backward() returns their gradients. First attention_norm, mlp_norm,
// and q_norm and k_norm if any; then the masters, whose gradients go to their buffers.
variable_list leaves_of(const Weights& masters) {
  variable_list leaves;
  for (const ops::MemoryBlockWeights& w : masters) {
    leaves.insert(leaves.end(), {w.attention_norm, w.mlp_norm});
    if (w.q_norm.defined()) leaves.insert(leaves.end(), {w.q_norm, w.k_norm});
    leaves.insert(leaves.end(), {w.qkv, w.o, w.gate_up, w.down});
  }
  return leaves;
}

struct MemoryBlocksFunction : torch::autograd::Function<MemoryBlocksFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& state, const at::Tensor& extra,
                            const at::Tensor& pos, const at::Tensor& norm, at::TensorList /*leaves*/,
                            const Weights& weights, const Weights& buffers, const ops::MemoryBlocksOptions& options,
                            bool recompute) {
    const at::Tensor low = pos.to(state.scalar_type());
    const auto [out, saved] = ops::memory_blocks_forward(state, extra, low, weights, norm, options);
    // Saves the computed values, or with recompute only the inputs.
    variable_list kept{norm, recompute ? at::Tensor() : saved.last};
    for (const at::Tensor& input : {state, extra, low}) kept.push_back(recompute ? input : at::Tensor());
    for (size_t i = 0; i < weights.size(); ++i) {
      const ops::MemoryBlockWeights& w = weights[i];
      const ops::MemoryBlockSaved& s = recompute ? ops::MemoryBlockSaved{} : saved.blocks[i];
      kept.insert(kept.end(), {s.x, s.qkv, s.mixed, s.lse, s.h, s.gate_up});
      kept.insert(kept.end(), {w.attention_norm, w.mlp_norm, w.q_norm, w.k_norm, w.qkv, w.o, w.gate_up, w.down});
    }
    ctx->save_for_backward(std::move(kept));
    // The gradient buffers are not saved variables, because each use of a weight adds to them in place.
    std::vector<c10::IValue> to;
    for (const ops::MemoryBlockWeights& b : buffers) {
      for (const at::Tensor& buffer : {b.qkv, b.o, b.gate_up, b.down}) to.emplace_back(buffer);
    }
    ctx->saved_data["buffers"] = c10::ivalue::Tuple::create(std::move(to));
    ctx->saved_data["heads"] = options.heads;
    ctx->saved_data["steps"] = options.steps;
    ctx->saved_data["eps"] = options.eps;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "blocks over a memory have no second derivative");
    const variable_list kept = ctx->get_saved_variables();
    const auto& buffers = ctx->saved_data["buffers"].toTupleRef().elements();
    constexpr size_t kEach = 14;
    Weights weights, to;
    ops::MemoryBlocksSaved saved{.blocks = {}, .last = kept[1]};
    for (size_t i = 5; i < kept.size(); i += kEach) {
      const at::Tensor* k = kept.data() + i;
      saved.blocks.push_back({k[0], k[1], k[2], k[3], k[4], k[5]});
      weights.push_back({k[6], k[7], k[8], k[9], k[10], k[11], k[12], k[13]});
      const size_t b = 4 * to.size();
      to.push_back({.attention_norm = {},
                    .mlp_norm = {},
                    .q_norm = {},
                    .k_norm = {},
                    .qkv = buffers[b].toTensor(),
                    .o = buffers[b + 1].toTensor(),
                    .gate_up = buffers[b + 2].toTensor(),
                    .down = buffers[b + 3].toTensor()});
    }
    const ops::MemoryBlocksOptions options{ctx->saved_data["heads"].toInt(), ctx->saved_data["steps"].toInt(),
                                           ctx->saved_data["eps"].toDouble()};
    if (!saved.last.defined()) {
      saved = std::get<1>(ops::memory_blocks_forward(kept[2], kept[3], kept[4], weights, kept[0], options));
    }
    const ops::MemoryBlocksGradients out = ops::memory_blocks_backward(grads[0], saved, weights, kept[0], options, to);
    variable_list result{out.state, out.extra, out.pos, out.norm};
    for (const auto& block : out.blocks) {
      result.insert(result.end(), {block.attention_norm, block.mlp_norm});
      if (block.q_norm.defined()) result.insert(result.end(), {block.q_norm, block.k_norm});
      result.insert(result.end(), 4, at::Tensor());
    }
    result.insert(result.end(), 4, at::Tensor());
    return result;
  }
};

// The blocks' parts if ops::memory_blocks supports them, otherwise nullopt.
std::optional<Parts> plain_parts(const std::vector<std::shared_ptr<TransformerBlock>>& blocks, const RmsNorm& norm) {
  Parts parts;
  for (const auto& block : blocks) {
    const std::optional<TransformerBlock::PlainParts> part = block->plain_parts();
    if (!part || part->eps != norm.eps()) return std::nullopt;
    parts.push_back(*part);
  }
  return parts.empty() ? std::nullopt : std::optional(parts);
}

at::Tensor one_after_the_other(const std::vector<std::shared_ptr<TransformerBlock>>& blocks, const RmsNorm& norm,
                               const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos, int64_t steps) {
  const at::Tensor added = extra.unsqueeze(1), low = pos.to(state.scalar_type());
  at::Tensor y = state;
  for (int64_t step = 0; step < steps; ++step) {
    at::Tensor h = y + added + low;
    for (const auto& block : blocks) h = block->forward(h, {.causal = false});
    y = norm.forward(h);
  }
  return y;
}

}  // namespace

at::Tensor memory_blocks(const std::vector<std::shared_ptr<TransformerBlock>>& blocks, const RmsNorm& norm,
                         const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos, int64_t steps) {
  const std::optional<Parts> parts = ops::backend() == ops::Backend::fused ? plain_parts(blocks, norm) : std::nullopt;
  if (!parts) return one_after_the_other(blocks, norm, state, extra, pos, steps);
  const ops::MemoryBlocksOptions options{parts->front().heads, steps, norm.eps()};
  const Weights weights = weights_of(*parts, [](const Linear& linear) { return linear.compute_weight(); });
  if (!at::GradMode::is_enabled()) {
    return ops::memory_blocks(state.contiguous(), extra, pos.to(state.scalar_type()), weights, norm.weight(), options);
  }
  // The backward pass reaches the mark of extra (or of state) after all steps, when the blocks' gradients are complete.
  at::Tensor marked_state = state, marked_extra = extra;
  at::Tensor& marked = extra.requires_grad() ? marked_extra : marked_state;
  for (const auto& block : blocks) marked = block->mark_use(marked);
  const Weights masters = weights_of(*parts, [](const Linear& linear) { return linear.weight(); });
  const Weights buffers =
      weights_of(*parts, [](const Linear& linear) { return ops::gradient_buffer(linear.weight()); });
  return MemoryBlocksFunction::apply(marked_state, marked_extra, pos, norm.weight(), at::TensorList(leaves_of(masters)),
                                     weights, buffers, options, parts->front().recompute);
}

}  // namespace hrm::nn

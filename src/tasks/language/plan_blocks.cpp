#include "tasks/language/plan_blocks.h"

#include <algorithm>
#include <cmath>

#include "hrm/nn/fp8_linears.h"
#include "hrm/ops/moe.h"

namespace hrm::tasks {
namespace {

constexpr double kWide = 4;  // bytes of what is computed in float32 whatever the compute dtype is

// With scales of rows, fp8 layers keep their inputs in 8 bits. Otherwise they are computed again.
bool by_rows(const PlanInput& in) {
  return in.config.precision.fp8_scaling == config::Fp8Scaling::rows;
}

// The feed-forward part of a block, and the gradients of its backward pass.
struct FeedForwardMemory {
  double kept = 0, backward = 0, plain = 0;
};

// nn/feed_forward.cpp, Swiglu: gate_up and the activation; the input is the norm's output.
FeedForwardMemory swiglu_memory(const PlanInput& in, double positions, const LanguageWidths& w, double size,
                                bool fp8 = false) {
  const double act = positions * w.inner * size;
  // In 8 bits (nn/fp8_block.cpp): the activation is computed again from gate_up. Its gradient exists, and the gradient
  // of gate_up is in memory twice, both in 8 bits, beside the transposes of the activation and of the gradient that the
  // block began with. Later the gradient of what gate_up read, and a transposed weight.
  if (fp8) {
    const double act8 = positions * w.inner;
    const double unit8 = w.inner * w.model < static_cast<double>(nn::kFp8WideWeight) ? positions * w.model : 0;
    const double second = 4 * act8 + unit8 + positions * w.model * size + 2 * w.model * w.inner;
    return {.kept = 2 * act + (by_rows(in) ? act8 : 0),
            .backward = std::max(act + 5 * act8 + unit8, second),
            .plain = 3 * act};
  }
  // Our kernels put the gate into the products, so that the activation has no gradient in memory.
  const bool fused = size < 4 && in.gpu.capability == 90;
  return {.kept = 3 * act,
          .backward = 2 * act + std::max(fused ? 0 : act, positions * w.model * size),
          .plain = fused ? act : 3 * act};
}

FeedForwardMemory gelu_memory(double positions, double width, double inner, double size) {
  const double act = positions * inner * size;
  return {.kept = 2 * act, .backward = act + std::max(act, positions * width * size), .plain = 2 * act};
}

// nn/moe.cpp and ops/moe/moe_autograd.cpp: scores, plan, the rows of the picks, slopes or gates and ups, activations
// and results.
FeedForwardMemory experts_memory(const PlanInput& in, double positions, const LanguageWidths& w, double size) {
  const config::MoeConfig& moe = in.config.moe;
  const auto picks = static_cast<double>(moe.top_k), experts = static_cast<double>(moe.experts);
  const auto inner = static_cast<double>(models::expert_inner(moe, in.config.lm.hidden_size));
  const bool gated = moe.activation == config::ExpertActivation::swiglu;
  const auto rows = static_cast<double>(ops::moe_rows(static_cast<int64_t>(positions), moe.top_k, moe.experts));
  FeedForwardMemory m;
  const double of_router = moe.z_weight > 0 ? 2 : 1;  // scores, and logits
  m.kept = positions * kWide * (experts * of_router + 3 * picks) +
           rows * (2 * w.model + (gated ? 3 : 2) * inner) * size + rows * kWide;
  if (moe.jitter > 0) m.kept += positions * w.model * size;
  // As in swiglu_memory; by tiles of our own.
  const auto whole = [](double width) { return std::fmod(width, 256) == 0; };
  const bool fused = size < 4 && in.gpu.capability == 90 && whole(w.model) && whole(inner);
  m.backward = positions * w.model * size;
  if (gated) {
    m.backward += rows * (w.model + 2 * inner + std::max(w.model, fused ? 0 : inner)) * size;
    m.plain = rows * (2 * w.model + (fused ? 1 : 3) * inner) * size;
  } else {
    m.backward += rows * (2 * w.model + inner) * size;
    m.plain = rows * (2 * w.model + 2 * inner) * size;
  }
  if (moe.shared_experts > 0) {
    LanguageWidths wide = w;
    wide.inner = static_cast<double>(moe.shared_experts) * inner;
    const FeedForwardMemory shared =
        gated ? swiglu_memory(in, positions, wide, size) : gelu_memory(positions, w.model, wide.inner, size);
    m.kept += shared.kept;
    m.plain += shared.plain;
    // The shared experts come last in the forward pass. So they are done when the others begin their backward pass.
    m.backward = std::max(m.backward - shared.kept, shared.backward);
  }
  return m;
}

// What attention keeps of its queries: the mixed values, a sum for each head and row, and its mask. With a mask it also
// keeps keys and values once per query head, because ATen's kernels with masks do not support groups.
double attention_kept(const BlockStack& s, const LanguageWidths& w, double size, bool masked) {
  const double positions = s.positions();
  const double repeated = masked && w.values < w.queries ? 2 * positions * w.queries * size : 0;
  return positions * (w.queries * size + kWide * w.heads) + repeated + (masked ? s.mask * size : 0);
}

// Gradients of q, k and v, of their product, and a float32 sum of that of q.
double attention_backward_bytes(double positions, const LanguageWidths& w, double size) {
  return positions * (size * (w.queries + 2 * (w.queries + 2 * w.values)) + kWide * w.queries);
}

// nn/transformer_block.cpp.
BlockMemory modern_block(const PlanInput& in, const BlockStack& s, int64_t layer) {
  const LanguageWidths w = part_widths(in, s);
  const double size = element_size(in.config), positions = s.positions(), unit = positions * w.model * size;
  // Of a part of the model, norms and what is between blocks have this part's rows. Products read all rows.
  const double own = stream_share(in, s), stream = own * unit;
  const double rstd = own * positions * kWide, qkv = positions * (w.queries + 2 * w.values) * size;
  // Of what only linear layers read, the norms' results and those of attention, nothing is kept, or 8-bit values.
  const bool fp8 = in_fp8(in) && s.reads != BlockStack::Reads::memory;
  const double kept8 = by_rows(in) ? positions : 0, read = fp8 ? kept8 * w.model : unit;
  BlockMemory m;
  m.mixing = read + rstd + qkv + attention_kept(s, w, size, s.mask > 0) + stream;
  const bool wide = w.queries * w.model >= static_cast<double>(nn::kFp8WideWeight) && !by_rows(in);
  if (fp8 && !wide) m.mixing += positions * w.queries;
  if (in.config.lm.qk_norm) m.mixing += positions * (w.queries + w.values) * size;
  if (s.cross) {
    m.mixing += (fp8 ? positions * (w.model + (wide ? 0 : w.queries)) : unit) + rstd + positions * w.queries * size +
                attention_kept(s, w, size, false) + stream;
    m.mixing += s.rows * s.memory * 2 * w.values * size;
  }
  const bool experts = has_experts(in, s, layer);
  const FeedForwardMemory mlp =
      experts ? experts_memory(in, positions, w, size) : swiglu_memory(in, positions, w, size, fp8);
  m.feed_forward = (experts ? unit : read) + rstd + mlp.kept;
  m.output = stream;
  // A part gathers gradients of all rows beside its products, and sends sums of all rows (nn/across_linear.h).
  const double travelling = is_cut(in, s) ? 2 * unit : 0;
  m.backward_feed_forward = mlp.backward + travelling;
  m.backward_mixing = attention_backward_bytes(positions, w, size) + travelling;
  m.plain = travelling;
  if (fp8) {
    // A weight in the compute dtype, for a pass that is not recorded.
    m.plain += size * static_cast<double>(in.largest_fp8);
  }
  m.plain += 2 * unit + std::max(mlp.plain, qkv + positions * w.queries * size);
  return m;
}

// nn/classic_blocks.cpp; norms compute in float32 on a copy of what they get.
BlockMemory prototype_block(const PlanInput& in, const BlockStack& s, int64_t layer) {
  const LanguageWidths w = language_widths(in);
  const double size = element_size(in.config), positions = s.positions(), unit = positions * w.model * size;
  const double norm = positions * (kWide * w.model + 2 * kWide);
  BlockMemory m;
  m.mixing = norm + 4 * unit + attention_kept(s, w, size, s.mask > 0);
  m.backward_mixing = attention_backward_bytes(positions, w, size);
  FeedForwardMemory mlp = has_experts(in, s, layer) ? experts_memory(in, positions, w, size)
                                                    : gelu_memory(positions, w.model, w.inner, size);
  m.feed_forward = norm + unit + mlp.kept;
  if (s.reads == BlockStack::Reads::answer) {  // behind each part a norm; ReLU keeps its result alone
    m.mixing += norm + 2 * unit + attention_kept(s, w, size, false) + s.rows * s.memory * 2 * w.model * size;
    mlp.kept = positions * w.inner * size;
    m.feed_forward = norm + mlp.kept;
    m.output = unit;
  }
  m.backward_feed_forward = mlp.backward;
  m.plain = norm + 2 * unit + std::max(mlp.plain, 4 * unit);
  return m;
}

// nn/mamba2.cpp: plain operations of ATen but for the scan; the residual stream and the gate are float32.
BlockMemory mamba2_block(const PlanInput& in, const BlockStack& s) {
  const config::LmConfig& lm = in.config.lm;
  const double size = element_size(in.config), positions = s.positions();
  const auto D = static_cast<double>(lm.hidden_size), inner = static_cast<double>(lm.mamba_expand) * D;
  const auto groups = static_cast<double>(lm.mamba_groups);
  const double heads = inner / static_cast<double>(lm.mamba_head_dim);
  const double channels = inner + 2 * groups * static_cast<double>(lm.mamba_state);
  const double padding = s.rows * static_cast<double>(lm.mamba_kernel - 1);
  BlockMemory m;
  m.mixing = positions * kWide * (1 + groups + 2 * heads + 4 * inner) + positions * size * (D + 3 * channels + inner) +
             padding * channels * size;
  // In float32 the gate is part of the projection, all of which lives as long.
  if (size == kWide) m.mixing += positions * kWide * (channels + heads);
  m.output = positions * kWide * D;
  m.backward_mixing = positions * kWide * (3 * inner + channels);
  m.plain = m.mixing;
  return m;
}

}  // namespace

BlockMemory block_memory(const PlanInput& in, const BlockStack& stack, int64_t layer) {
  if (stack.mamba2) return mamba2_block(in, stack);
  return prototype(in) ? prototype_block(in, stack, layer) : modern_block(in, stack, layer);
}

bool is_one_op(const PlanInput& in, const BlockStack& stack) {
  const LanguageWidths w = language_widths(in);
  return stack.reads == BlockStack::Reads::memory && !prototype(in) && w.values == w.queries && w.queries == w.model &&
         in.config.ops.backend == config::OpsBackend::fused;
}

bool is_one_kernel(const PlanInput& in, const BlockStack& stack) {
  const LanguageWidths w = language_widths(in);
  return is_one_op(in, stack) && element_size(in.config) < 4 && in.gpu.capability == 90 && stack.length <= 64 &&
         (w.model == 256 || w.model == 512) && 64 * w.heads == w.model && w.inner == 3 * w.model && stack.layers <= 4;
}

// ops/memory_blocks.h: what every step saves. In the backward pass also norms and gradients of all steps, which live
// until the weights' gradients are computed from them.
BlockMemory memory_blocks_memory(const PlanInput& in, const BlockStack& stack, double steps) {
  const LanguageWidths w = language_widths(in);
  const double size = element_size(in.config), positions = stack.positions() * steps;
  const auto layers = static_cast<double>(stack.layers);
  const double unit = positions * w.model * size, inner = positions * w.inner * size, rstd = positions * kWide;
  BlockMemory m;
  m.mixing = layers * (6 * unit + 2 * inner + positions * kWide * w.heads) + unit;
  const double normed = (2 * layers + 1) * (unit + rstd) + (in.config.lm.qk_norm ? 3 * layers * unit : 0);
  m.backward_mixing = normed + layers * (7 * unit + 2 * inner) + 2 * unit + std::max(2 * inner, inner + unit);
  m.plain = is_one_kernel(in, stack) ? 0 : 2 * inner;  // a stack of what was kept step by step
  return m;
}

double last_norm_bytes(const PlanInput& in, const BlockStack& stack) {
  const double size = element_size(in.config), D = static_cast<double>(in.config.lm.hidden_size);
  if (!prototype(in)) return stream_share(in, stack) * stack.positions() * kWide;
  const bool has_input =
      stack.reads == BlockStack::Reads::answer && size == kWide;  // counted as the last block's output
  return stack.positions() * (2 * kWide + (has_input ? 0 : kWide * D));
}

double first_input_bytes(const PlanInput& in, const BlockStack& stack) {
  const double size = element_size(in.config), D = static_cast<double>(in.config.lm.hidden_size);
  if (stack.mamba2) return stack.positions() * kWide * D;
  if (prototype(in) && stack.reads != BlockStack::Reads::answer) return 0;  // the first block's norm has it
  return stream_share(in, stack) * stack.positions() * size * D;
}

}  // namespace hrm::tasks

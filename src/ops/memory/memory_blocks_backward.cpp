#include <ATen/ATen.h>

#include <algorithm>

#include "hrm/ops/attention.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/linear_swiglu.h"
#include "hrm/ops/memory_blocks.h"
#include "hrm/ops/qkv_heads.h"
#include "hrm/ops/swiglu.h"
#include "hrm/ops/weighted_rms_norm.h"
#include "ops/memory/memory_blocks_impl.h"

namespace hrm::ops {
namespace {

// What all steps of a block give to sums over them: gradients in the order of steps.
struct Gathered {
  std::vector<at::Tensor> y, gate_up, mlp_normed, h, qkv, attention_normed, q_norm, k_norm;
};

at::Tensor rows(const at::Tensor& stacked) {
  return stacked.reshape({-1, stacked.size(-1)});
}

// In the reverse order of their calculation; the parts are freed.
at::Tensor joined(std::vector<at::Tensor>& parts) {
  std::reverse(parts.begin(), parts.end());
  const at::Tensor all = rows(at::stack(parts));
  parts.clear();
  return all;
}

struct Normed {
  at::Tensor y, rstd;  // of all steps
};

Normed norm_again(const at::Tensor& x, const at::Tensor& weight, double eps) {
  auto [y, rstd] = weighted_rms_norm_forward(x, weight, eps);
  return {y, rstd};
}

// The gradient of a norm's weight over all steps.
at::Tensor norm_gradient(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& rstd,
                         const at::Tensor& weight) {
  return std::get<1>(weighted_rms_norm_backward(grad_y, rows(x), rstd.reshape({-1}), weight));
}

}  // namespace

MemoryBlocksGradients memory_blocks_backward(const at::Tensor& grad, const MemoryBlocksSaved& saved,
                                             const std::vector<MemoryBlockWeights>& blocks, const at::Tensor& norm,
                                             const MemoryBlocksOptions& options,
                                             const std::vector<MemoryBlockWeights>& grad_weights) {
  TORCH_CHECK(grad.dim() == 3 && saved.last.dim() == 4 && saved.last.sizes().slice(1) == grad.sizes() &&
                  saved.blocks.size() == blocks.size() && grad_weights.size() == blocks.size(),
              "hrm::memory_blocks_backward: grad ", grad.sizes(), " does not fit what was saved of ",
              saved.blocks.size(), " blocks, (S, B, T, D) = ", saved.last.sizes());
  const bool qk_norm = blocks[0].q_norm.defined();
  const QkvSizes sizes{options.heads, options.heads, grad.size(2) / options.heads};
  // All steps at once: what the forward pass need not keep.
  const Normed last = norm_again(saved.last, norm, options.eps);
  std::vector<Normed> attention_normed, mlp_normed;
  std::vector<at::Tensor> heads;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const MemoryBlockSaved& s = saved.blocks[i];
    attention_normed.push_back(norm_again(s.x, blocks[i].attention_norm, options.eps));
    mlp_normed.push_back(norm_again(s.h, blocks[i].mlp_norm, options.eps));
    heads.push_back(normalised_qkv(s.qkv.flatten(0, 1), blocks[i], options.heads, options.eps).view(s.qkv.sizes()));
  }

  // So few rows have too few tiles of 128 x 256 for the product with SwiGLU's gradient in its epilogue; the library has
  // smaller ones.
  const bool few = grad.size(0) * grad.size(1) <= 1024;
  std::vector<Gathered> all(blocks.size());
  std::vector<at::Tensor> last_grads, start_grads;
  at::Tensor g = grad.contiguous();
  for (int64_t step = options.steps - 1; step >= 0; --step) {
    const auto norm_back = [&](const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& rstd,
                               const at::Tensor& weight, const std::optional<at::Tensor>& grad_x) {
      return std::get<0>(
          weighted_rms_norm_backward(grad_y, x[step], rstd[step], weight, grad_x, /*needs_weight=*/false));
    };
    last_grads.push_back(g);
    g = norm_back(g, saved.last, last.rstd, norm, std::nullopt);
    for (size_t i = blocks.size(); i-- > 0;) {
      const MemoryBlockWeights& w = blocks[i];
      const MemoryBlockSaved& s = saved.blocks[i];
      const at::Tensor grad_gate_up = few ? swiglu_backward(linear_grad_x(g, w.down), s.gate_up[step])
                                          : linear_swiglu_backward(g, w.down, s.gate_up[step]);
      const at::Tensor grad_mlp = linear_grad_x(grad_gate_up, w.gate_up);
      const at::Tensor grad_h = norm_back(grad_mlp, s.h, mlp_normed[i].rstd, w.mlp_norm, g);
      at::Tensor grad_qkv = attention_backward(linear_grad_x(grad_h, w.o), heads[i][step], s.mixed[step], s.lse[step],
                                               options.heads, at::Tensor(), at::Tensor());
      Gathered& gathered = all[i];
      if (qk_norm) {
        const std::vector<at::Tensor> parts = grad_qkv.unflatten(-1, {3, sizes.heads, sizes.head_dim}).unbind(2);
        at::Tensor grad_q_norm, grad_k_norm;
        std::tie(grad_qkv, grad_q_norm, grad_k_norm) =
            qkv_heads_backward(parts[0], parts[1], parts[2], s.qkv[step],
                               {.q_weight = w.q_norm, .k_weight = w.k_norm, .eps = options.eps});
        gathered.q_norm.push_back(grad_q_norm);
        gathered.k_norm.push_back(grad_k_norm);
      }
      const at::Tensor grad_attention = linear_grad_x(grad_qkv, w.qkv);
      gathered.y.push_back(g);
      gathered.gate_up.push_back(grad_gate_up);
      gathered.mlp_normed.push_back(grad_mlp);
      gathered.h.push_back(grad_h);
      gathered.qkv.push_back(grad_qkv);
      gathered.attention_normed.push_back(grad_attention);
      g = norm_back(grad_attention, s.x, attention_normed[i].rstd, w.attention_norm, grad_h);
    }
    start_grads.push_back(g);
  }

  MemoryBlocksGradients out{.state = g, .extra = {}, .pos = {}, .norm = {}, .blocks = {}};
  const at::ScalarType wide = norm.scalar_type();
  const at::Tensor starts = at::stack(start_grads);  // (S, B, T, D)
  start_grads.clear();
  out.extra = starts.sum(at::IntArrayRef({0, 2}), /*keepdim=*/false, wide).to(grad.scalar_type());
  out.pos = starts.sum(at::IntArrayRef({0, 1}), /*keepdim=*/false, wide);
  out.norm = norm_gradient(joined(last_grads), saved.last, last.rstd, norm);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const MemoryBlockSaved& s = saved.blocks[i];
    const MemoryBlockWeights& to = grad_weights[i];
    const auto add = [](const at::Tensor& buffer, std::vector<at::Tensor>& grads, const at::Tensor& input) {
      if (buffer.defined()) linear_accumulate_(buffer, joined(grads), rows(input));
    };
    add(to.down, all[i].y, to.down.defined() ? swiglu(s.gate_up) : at::Tensor());
    add(to.gate_up, all[i].gate_up, mlp_normed[i].y);
    add(to.o, all[i].h, s.mixed);
    add(to.qkv, all[i].qkv, attention_normed[i].y);
    MemoryBlocksGradients::Block block;
    block.attention_norm =
        norm_gradient(joined(all[i].attention_normed), s.x, attention_normed[i].rstd, blocks[i].attention_norm);
    block.mlp_norm = norm_gradient(joined(all[i].mlp_normed), s.h, mlp_normed[i].rstd, blocks[i].mlp_norm);
    if (qk_norm) {
      block.q_norm = at::stack(all[i].q_norm).sum(0);
      block.k_norm = at::stack(all[i].k_norm).sum(0);
    }
    out.blocks.push_back(std::move(block));
  }
  return out;
}

}  // namespace hrm::ops

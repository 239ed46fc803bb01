#include "ops/moe/moe_ref.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "ops/common/accumulate_type.h"

namespace hrm::ops::reference {
namespace {

// (S, k, E), 1 where a pick is of an expert.
at::Tensor pick_matrix(const at::Tensor& index, int64_t experts) {
  return index.unsqueeze(-1).eq(at::arange(experts, index.options()));
}

at::Tensor expert(const at::Tensor& x, const at::Tensor& up, const at::Tensor& down, ExpertActivation activation) {
  const at::Tensor pre = at::linear(x, up);
  if (activation == ExpertActivation::gelu) return at::linear(at::gelu(pre), down);
  const auto parts = pre.chunk(2, -1);
  return at::linear(at::silu(parts[0]) * parts[1], down);
}

}  // namespace

int64_t moe_capacity(int64_t tokens, int64_t experts, const MoeOptions& options) {
  const int64_t picks = tokens * options.top_k;
  if (options.capacity_factor <= 0) return picks;
  const double share = options.capacity_factor * static_cast<double>(picks) / static_cast<double>(experts);
  return std::min(picks, static_cast<int64_t>(std::ceil(share)));
}

MoeRouting moe_route(const at::Tensor& logits, const MoeOptions& options, const at::Tensor& bias) {
  TORCH_CHECK(logits.dim() == 2 && options.top_k >= 1 && options.top_k <= logits.size(1),
              "moe_route: logits must be (S, E) with E of at least top_k ", options.top_k, ", got ", logits.sizes());
  const int64_t tokens = logits.size(0), experts = logits.size(1), k = options.top_k;
  MoeRouting r;
  r.probs = options.router == Router::softmax ? at::softmax(logits, -1) : at::sigmoid(logits);
  const at::Tensor scores = bias.defined() ? r.probs + bias : r.probs;
  r.index = std::get<1>(scores.detach().topk(k, -1));
  r.gate = r.probs.gather(-1, r.index);
  if (options.renormalise) r.gate = r.gate / r.gate.sum(-1, /*keepdim=*/true);
  const at::Tensor picks = pick_matrix(r.index, experts);
  r.load = picks.sum(at::IntArrayRef{0, 1});

  // Picks of all tokens by falling gate; a pick's rank is the number of earlier picks of the same expert.
  const at::Tensor order = r.gate.detach().reshape({-1}).argsort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  const at::Tensor sorted = picks.view({tokens * k, experts}).index_select(0, order).to(at::kLong);
  const at::Tensor rank = ((sorted.cumsum(0) - 1) * sorted).sum(-1);
  const at::Tensor kept = rank.lt(moe_capacity(tokens, experts, options));
  r.kept = at::empty_like(kept).scatter_(0, order, kept).view({tokens, k});
  return r;
}

at::Tensor moe_experts(const at::Tensor& x, const MoeRouting& routing, const at::Tensor& up, const at::Tensor& down,
                       ExpertActivation activation) {
  const at::ScalarType wide = accumulate_type(x);
  const at::Tensor weight = (routing.gate * routing.kept).to(wide);                                     // (S, k)
  const at::Tensor of_expert = (pick_matrix(routing.index, up.size(0)) * weight.unsqueeze(-1)).sum(1);  // (S, E)
  at::Tensor y = at::zeros(x.sizes(), x.options().dtype(wide));
  for (int64_t e = 0; e < up.size(0); ++e) {
    y = y + of_expert.narrow(1, e, 1) * expert(x, up[e], down[e], activation).to(wide);
  }
  return y.to(x.scalar_type());
}

at::Tensor moe_shared(const at::Tensor& x, const at::Tensor& up, const at::Tensor& down, ExpertActivation activation) {
  at::Tensor y = at::zeros(x.sizes(), x.options().dtype(accumulate_type(x)));
  for (int64_t e = 0; e < up.size(0); ++e) y = y + expert(x, up[e], down[e], activation).to(y.scalar_type());
  return y.to(x.scalar_type());
}

at::Tensor moe_load_loss(const MoeRouting& routing) {
  const auto tokens = static_cast<double>(routing.probs.size(0)), experts = static_cast<double>(routing.probs.size(1));
  return (routing.probs.sum(0) * routing.load).sum() * (experts / (tokens * tokens));
}

at::Tensor moe_router_z_loss(const at::Tensor& logits) {
  return at::logsumexp(logits, -1).square().mean();
}

at::Tensor moe_balanced_bias(const at::Tensor& bias, const at::Tensor& load, double rate) {
  const at::Tensor load_f = load.to(bias.scalar_type());
  return bias + rate * at::sign(load_f.mean() - load_f);
}

}  // namespace hrm::ops::reference

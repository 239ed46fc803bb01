#include <ATen/ATen.h>

#include <cmath>

#include "hrm/base/philox.h"
#include "ops/common/accumulate_type.h"
#include "ops/moe/moe_impl.h"

namespace hrm::ops {
namespace reference {

at::Tensor moe_experts(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& ids, const at::Tensor& up,
                       const at::Tensor& down, ExpertActivation activation) {
  const at::ScalarType sums = accumulate_type(x);
  at::Tensor out = at::zeros(x.sizes(), x.options().dtype(sums));
  for (int64_t expert = 0; expert < up.size(0); ++expert) {
    const at::Tensor share = at::where(ids.eq(expert), weights, 0).sum(1, /*keepdim=*/true);
    const at::Tensor pre = at::linear(x, up[expert]);
    at::Tensor act;
    if (activation == ExpertActivation::swiglu) {
      const int64_t inner = pre.size(1) / 2;
      act = at::silu(pre.narrow(1, 0, inner)) * pre.narrow(1, inner, inner);
    } else {
      act = at::gelu(pre);
    }
    const at::Tensor y = at::linear(act, down[expert]);
    out = out + share.to(sums) * y.to(sums);
  }
  return out.to(x.scalar_type());
}

at::Tensor moe_jitter(const at::Tensor& x, const at::Tensor& step, double amount, int64_t seed) {
  const at::Tensor noise = at::empty({x.numel()}, at::kFloat);
  auto* to = noise.data_ptr<float>();
  CounterRng rng(static_cast<uint64_t>(seed), Stream::jitter, static_cast<uint64_t>(step.item<int64_t>()));
  for (int64_t i = 0; i < x.numel(); ++i) {
    to[i] = 1 + static_cast<float>(amount) * (2 * rng.uniform() - 1);
  }
  return (x * noise.view(x.sizes()).to(x.device())).to(x.scalar_type());
}

MoeGate moe_gate(const at::Tensor& logits, int64_t top_k, MoeScore score, bool normalize, const OptionalTensor& bias) {
  const at::Tensor scores = score == MoeScore::sigmoid ? at::sigmoid(logits) : at::softmax(logits, 1);
  const at::Tensor order = bias ? scores + *bias : scores;
  // A stable sort: of equal ones the lower comes first.
  const at::Tensor sorted = std::get<1>(at::nan_to_num(order.detach(), -INFINITY, INFINITY, -INFINITY)
                                            .sort(/*stable=*/true, /*dim=*/1, /*descending=*/true));
  const at::Tensor ids = sorted.narrow(1, 0, top_k);
  at::Tensor weights = scores.gather(1, ids);
  if (normalize) weights = weights / weights.sum(1, /*keepdim=*/true);
  return {ids.to(at::kInt), weights, scores};
}

std::tuple<at::Tensor, at::Tensor> moe_load_loss_(const at::Tensor& scores, const at::Tensor& kept,
                                                  const OptionalTensor& wanted, const at::Tensor& totals) {
  const int64_t experts = scores.size(1);
  const auto tokens = static_cast<double>(scores.size(0));
  const at::Tensor& before = wanted ? *wanted : kept;
  totals.narrow(0, 0, experts).add_(before);
  totals.select(0, experts).add_(before.sum() - kept.sum());
  const at::Tensor slope = before.to(scores.scalar_type()) * (static_cast<double>(experts) / (tokens * tokens));
  return {(scores.sum(0) * slope).sum(), slope};
}

void moe_loads_(const at::Tensor& loads, at::TensorList counts) {
  const at::NoGradGuard no_grad;
  for (size_t layer = 0; layer < counts.size(); ++layer) {
    const int64_t experts = counts[layer].size(0) - 1;
    const at::Tensor picks = counts[layer].narrow(0, 0, experts), all = picks.sum().clamp_min(1), share = picks / all;
    const double most = std::log(static_cast<double>(experts));
    const at::Tensor entropy = at::special_entr(share).sum();
    loads[static_cast<int64_t>(layer)].copy_(
        at::stack({most > 0 ? entropy / most : at::ones_like(entropy), share.max() * static_cast<double>(experts),
                   counts[layer].select(0, experts) / all}));
  }
}

}  // namespace reference

namespace composed {
PlanResult moe_plan(const at::Tensor& ids, int64_t experts) {
  const int64_t all = ids.numel(), count_rows = moe_rows(ids.size(0), ids.size(1), experts);
  const auto longs = ids.options().dtype(at::kLong);
  const at::Tensor flat = ids.reshape({-1}).to(at::kLong);
  // Dropped picks are sorted behind all experts.
  const at::Tensor key = at::where(flat.lt(0), experts, flat);
  const auto [sorted, order] = key.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor wanted = at::arange(experts + 1, longs);
  const at::Tensor begins = at::searchsorted(sorted, wanted);  // first place of each expert, and of the dropped
  const at::Tensor counts = begins.narrow(0, 1, experts) - begins.narrow(0, 0, experts);
  const at::Tensor padded = (counts + (kMoeTile - 1)).div(kMoeTile, "floor") * kMoeTile;
  const at::Tensor starts = at::cat({at::zeros({1}, longs), padded.cumsum(0)});
  const at::Tensor place = at::arange(all, longs) - begins.index_select(0, sorted) + starts.index_select(0, sorted);
  const at::Tensor row_sorted = at::where(sorted.lt(experts), place, -1);
  const at::Tensor rows = at::empty({all}, longs).index_copy_(0, order, row_sorted);
  // One row more, for the picks that have none.
  const at::Tensor picks = at::full({count_rows + 1}, -1, longs)
                               .index_copy_(0, at::where(row_sorted.lt(0), count_rows, row_sorted), order)
                               .narrow(0, 0, count_rows);
  const at::Tensor first = at::arange(0, count_rows, kMoeTile, longs);
  const at::Tensor tiles = at::searchsorted(starts.narrow(0, 1, experts).contiguous(), first, /*out_int32=*/false,
                                            /*right=*/true);
  return {rows.to(at::kInt).view(ids.sizes()), picks.to(at::kInt).contiguous(),
          at::where(tiles.lt(experts), tiles, 0).to(at::kInt), starts.to(at::kInt), counts.to(at::kInt)};
}

at::Tensor moe_gather(const at::Tensor& x, const at::Tensor& picks, int64_t top_k) {
  const at::Tensor token = picks.clamp_min(0).div(top_k, "floor");
  return x.index_select(0, token).masked_fill_(picks.lt(0).unsqueeze(1), 0);
}

bool can_group(const at::Tensor& rows, const at::Tensor& weight) {
  return rows.scalar_type() == at::kBFloat16 && rows.size(1) % 8 == 0 && weight.size(2) % 8 == 0;
}

at::Tensor moe_linear(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& tile_experts,
                      const at::Tensor& starts, bool transposed, bool may_group) {
  if (may_group && can_group(rows, weight)) {
    const at::Tensor ends = starts.narrow(0, 1, weight.size(0));
    return at::_grouped_mm(rows, transposed ? weight : weight.transpose(1, 2), ends);
  }
  const int64_t tiles = tile_experts.size(0);
  const at::Tensor each = weight.index_select(0, tile_experts);
  return at::bmm(rows.view({tiles, kMoeTile, rows.size(1)}), transposed ? each : each.transpose(1, 2))
      .view({rows.size(0), -1});
}

void moe_accumulate_(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor& tile_experts,
                     const at::Tensor& starts, bool overwrite) {
  if (overwrite) grad.zero_();
  // Rows behind all experts may hold anything, also no numbers.
  const at::Tensor used = at::arange(a.size(0), starts.options()).lt(starts.select(0, grad.size(0))).unsqueeze(1);
  const at::Tensor of = tile_experts.repeat_interleave(kMoeTile, /*dim=*/0, a.size(0)).unsqueeze(1);
  const at::Tensor right = at::where(used, b, 0).to(grad.scalar_type());
  for (int64_t expert = 0; expert < grad.size(0); ++expert) {
    const at::Tensor left = at::where(used.logical_and(of.eq(expert)), a, 0).to(grad.scalar_type());
    grad[expert].addmm_(left.t(), right);
  }
}

at::Tensor moe_combine(const at::Tensor& y, const at::Tensor& rows, const OptionalTensor& weights) {
  const at::Tensor dropped = rows.lt(0).unsqueeze(2);
  at::Tensor of = y.index_select(0, rows.clamp_min(0).view({-1}))
                      .view({rows.size(0), rows.size(1), y.size(1)})
                      .to(accumulate_type(y))
                      .masked_fill(dropped, 0);
  if (weights) of = of * weights->unsqueeze(2);
  return of.sum(1).to(y.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> moe_combine_backward(const at::Tensor& grad_out, const at::Tensor& y,
                                                        const at::Tensor& picks, const at::Tensor& weights) {
  const at::Tensor none = picks.lt(0), pick = picks.clamp_min(0).to(at::kLong);
  const at::Tensor grad = grad_out.index_select(0, pick.div(weights.size(1), "floor")).to(accumulate_type(y));
  const at::Tensor share = weights.reshape({-1}).index_select(0, pick).unsqueeze(1);
  const at::Tensor grad_y = (grad * share).masked_fill_(none.unsqueeze(1), 0).to(y.scalar_type());
  const at::Tensor dots =
      at::where(none.unsqueeze(1), 0, grad * y.to(grad.scalar_type())).sum(1).to(weights.scalar_type());
  // Rows without a pick add their zero to the first.
  const at::Tensor grad_weights = at::zeros({weights.numel()}, weights.options()).index_add_(0, pick, dots);
  return {grad_y, grad_weights.view(weights.sizes())};
}

std::tuple<at::Tensor, at::Tensor> gelu_and_slope(const at::Tensor& pre) {
  return {at::gelu(pre), at::gelu_backward(at::ones({}, pre.options()).expand(pre.sizes()), pre)};
}

at::Tensor moe_gate_backward(const OptionalTensor& grad_weights, const OptionalTensor& grad_scores,
                             const at::Tensor& ids, const at::Tensor& scores, bool sigmoid, bool normalize) {
  at::Tensor grad = grad_scores ? grad_scores->clone() : at::zeros_like(scores);
  if (grad_weights) {
    const at::Tensor index = ids.to(at::kLong);
    at::Tensor of_picks = *grad_weights;
    if (normalize) {
      const at::Tensor picked = scores.gather(1, index), sum = picked.sum(1, /*keepdim=*/true);
      of_picks = (of_picks - (of_picks * picked).sum(1, /*keepdim=*/true) / sum) / sum;
    }
    grad = grad.scatter_add(1, index, of_picks);
  }
  if (sigmoid) return grad * scores * (1 - scores);
  return scores * (grad - (grad * scores).sum(1, /*keepdim=*/true));
}

}  // namespace composed
}  // namespace hrm::ops

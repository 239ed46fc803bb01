// The readable version, the CPU implementation, and the oracle of the CUDA kernel.
#include <ATen/ATen.h>

#include <limits>

#include "ops/decode/next_tokens_impl.h"

namespace hrm::ops::reference {
namespace {

// A mass is a probability over the greatest one of its row, in units of 2^-40: a row of 2^20 tokens stays below 2^60.
constexpr double kUnits = 0x1.0p40;

at::Tensor mass_of(const at::Tensor& values) {
  return values.exp().mul_(kUnits).to(at::kLong);
}

// Which values stay by top_p among those that top_k has left. descending: their values (B, K), or the first K of them
// where all that follow equal the K-th.
at::Tensor in_nucleus(const at::Tensor& values, const at::Tensor& mass, const at::Tensor& descending, double top_p) {
  // At least one, so that the first stays at top_p 0.
  const at::Tensor wanted = mass.sum(-1, /*keepdim=*/true).to(at::kDouble).mul_(top_p).clamp_min_(1);
  const at::Tensor listed = mass_of(descending);
  const at::Tensor before = listed.cumsum(-1) - listed;
  // The least value of which something stays, and how many of its equals do, the lower ids first.
  const at::Tensor last =
      descending.masked_fill(before.ge(wanted), std::numeric_limits<float>::infinity()).amin(-1, /*keepdim=*/true);
  const at::Tensor above = values.gt(last), equal = values.eq(last);
  const at::Tensor rank = equal.cumsum(-1, at::kLong).sub_(1).clamp_min_(0);
  const at::Tensor reached = mass.masked_fill(above.logical_not(), 0).sum(-1, /*keepdim=*/true) + rank * mass_of(last);
  return above.logical_or_(equal.logical_and(reached.lt(wanted)));
}

// (B, V) int64, 0 for what the filters leave out.
at::Tensor filtered_mass(const at::Tensor& logits, const SamplingOptions& o) {
  const int64_t V = logits.size(-1);
  const at::Tensor values = (logits - logits.amax(-1, /*keepdim=*/true)).div_(o.temperature);
  at::Tensor mass = mass_of(values), descending;
  if (o.top_k > 0 && o.top_k < V) {
    descending = std::get<0>(values.topk(o.top_k, -1, /*largest=*/true, /*sorted=*/true));
    mass.masked_fill_(values.lt(descending.narrow(-1, o.top_k - 1, 1)), 0);
  }
  if (o.top_p < 1) {
    if (!descending.defined()) descending = std::get<0>(values.sort(-1, /*descending=*/true));
    mass.masked_fill_(in_nucleus(values, mass, descending, o.top_p).logical_not_(), 0);
  }
  if (o.min_p > 0) mass.masked_fill_(values.exp().lt(o.min_p), 0);
  return mass;
}

}  // namespace

at::Tensor filtered_probabilities(const at::Tensor& logits, const SamplingOptions& options) {
  const at::Tensor mass = filtered_mass(logits, options).to(at::kDouble);
  return (mass / mass.sum(-1, /*keepdim=*/true)).to(at::kFloat);
}

at::Tensor sample_tokens(const at::Tensor& given, const SamplingOptions& options, const at::Tensor& draws) {
  const at::Tensor logits = given.to(at::kFloat);
  if (options.temperature == 0) {
    const auto [best, tokens] = logits.max(-1);
    return tokens.masked_fill(best.isfinite().logical_not_(), -1);
  }
  const at::Tensor reached = filtered_mass(logits, options).cumsum(-1);
  const at::Tensor all = reached.narrow(-1, reached.size(-1) - 1, 1);
  // Rounding may bring the product to the whole mass, which belongs to no token.
  const at::Tensor drawn = at::minimum((draws.unsqueeze(-1) * all.to(at::kDouble)).to(at::kLong), all - 1);
  const at::Tensor tokens = at::searchsorted(reached, drawn, /*out_int32=*/false, /*right=*/true).squeeze(-1);
  return tokens.masked_fill(logits.amax(-1).isfinite().logical_not_(), -1);
}

void next_tokens_(const at::Tensor& logits, const SamplingOptions& options, const WrittenRows& rows) {
  at::Tensor draw;
  if (options.temperature > 0) {
    draw = rows.draws.gather(1, rows.count.clamp_max(rows.draws.size(1) - 1).unsqueeze(1)).squeeze(1);
  }
  const at::Tensor token = reference::sample_tokens(logits, options, draw);
  if (rows.log_p.defined()) {
    const at::Tensor scaled = logits.to(at::kFloat) / (options.temperature > 0 ? options.temperature : 1);
    const at::Tensor at_token = at::log_softmax(scaled, -1).gather(1, token.clamp_min(0).unsqueeze(1)).squeeze(1);
    const at::Tensor known = at_token.masked_fill(token.lt(0), std::numeric_limits<double>::quiet_NaN());
    at::Tensor(rows.log_p).copy_(known.masked_fill(rows.active.logical_not(), 0));
  }
  at::Tensor(rows.chosen).copy_(at::where(rows.active, token, kNoRow));
  at::Tensor(rows.count).add_(rows.active);
  at::Tensor(rows.active)
      .logical_and_(token.unsqueeze(1).eq(rows.stop_ids).any(1).logical_not_())
      .logical_and_(rows.count.lt(rows.limits));
  at::Tensor(rows.ids).copy_(token.clamp_min(0));
}

}  // namespace hrm::ops::reference

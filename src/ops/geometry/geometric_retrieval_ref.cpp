// The readable version, and the oracle of the kernel.
#include <ATen/ATen.h>

#include <limits>

#include "ops/geometry/geometric_retrieval_impl.h"

namespace hrm::ops::reference {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// -beta R sqrt(sum g (c - q)^2 + eps), (B, K), for coordinates (B, K, n) or (K, n).
at::Tensor retrieval_scores(const RetrievalArgs& args, const at::Tensor& coords) {
  const at::Tensor distance = ((coords - args.query.unsqueeze(1)).square() * args.g).sum(-1);
  const at::Tensor r = args.resilience.dim() == 0 ? args.resilience : args.resilience.unsqueeze(1);
  return speed(distance, args.eps) * r * -args.beta;
}

// States of what is no candidate may be NaN, which a zero weight would not hide.
at::Tensor clean_states(const at::Tensor& states, const at::Tensor& valid, const at::Tensor& like) {
  return states.to(like.scalar_type()).masked_fill(valid.logical_not().unsqueeze(-1), 0);
}

}  // namespace

at::Tensor geometric_retrieval(const RetrievalArgs& args) {
  const RetrievalCandidates& c = args.candidates;
  const int64_t rows = args.query.size(0);
  std::vector<at::Tensor> scores;
  at::Tensor own_states, bank_states;
  if (args.has_own()) {
    const at::Tensor valid =
        c.mask.defined() ? c.mask : at::ones({rows, c.coords.size(1)}, c.coords.options().dtype(at::kBool));
    scores.push_back(retrieval_scores(args, c.coords).masked_fill(valid.logical_not(), kNever));
    own_states = clean_states(c.states, valid, args.query);
  }
  if (args.has_bank()) {
    const at::Tensor valid = at::arange(c.bank_coords.size(0), c.filled.options()).lt(c.filled);
    scores.push_back(retrieval_scores(args, c.bank_coords).masked_fill(valid.logical_not(), kNever));
    bank_states = clean_states(c.bank_states, valid, args.query);
  }
  const at::Tensor all = at::cat(scores, 1);
  at::Tensor y = at::zeros({rows, args.width()}, args.query.options());
  if (all.size(1) == 0) return y;
  const at::Tensor largest = all.amax(1, /*keepdim=*/true);
  const at::Tensor weights = (all - largest.masked_fill(largest.eq(kNever), 0)).exp();
  const at::Tensor sum = weights.sum(1, /*keepdim=*/true);
  const at::Tensor w = weights / sum.masked_fill(sum.eq(0), 1);
  const int64_t own = own_states.defined() ? own_states.size(1) : 0;
  if (own > 0) y = y + w.narrow(1, 0, own).unsqueeze(1).matmul(own_states).squeeze(1);
  if (bank_states.defined()) y = y + w.narrow(1, own, bank_states.size(0)).matmul(bank_states);
  return y;
}

}  // namespace hrm::ops::reference

#include "hrm/objectives/policy_gradient.h"

#include <ATen/ATen.h>

#include <limits>

#include "hrm/base/error.h"

namespace hrm::objectives {
namespace {

// The standard deviation below which compat treats a group's rewards as equal, and its bound on advantages. Both are
// those of the reference trainer.
constexpr double kCompatLeastStd = 1e-8, kCompatLargest = 10;

// The standard deviation with divisor n - 1, from `sum_of_squares` over `count` numbers; 0 for fewer than two.
at::Tensor deviation(const at::Tensor& sum_of_squares, const at::Tensor& count) {
  return (sum_of_squares / (count - 1).clamp_min(1)).sqrt();
}

at::Tensor group_mask(const at::Tensor& rewards, const at::Tensor& counts) {
  if (!counts.defined()) return at::ones_like(rewards, at::kBool);
  return at::arange(rewards.size(1), counts.options()).unsqueeze(0).lt(counts.unsqueeze(1));
}

// k3 = exp(d) - d - 1 >= 0. Its mean over samples of the policy estimates the KL divergence from the reference.
at::Tensor k3(const at::Tensor& d) {
  return at::expm1(d) - d;
}

void check_policy_options(const PolicyOptions& options, const at::Tensor& logp_ref) {
  require(options.epsilon_low >= 0 && options.epsilon_low < 1 && options.epsilon_high >= 0, ExitCode::usage,
          "the clip must have an epsilon_low in 0..1 and an epsilon_high of at least 0, not ", options.epsilon_low,
          " and ", options.epsilon_high);
  require(!options.delta || *options.delta > 1 + options.epsilon_high, ExitCode::usage,
          "delta caps the ratio beyond the clip: it must be above 1 + epsilon_high = ", 1 + options.epsilon_high,
          ", not ", options.delta.value_or(0));
  require(options.aggregation != PolicyAggregation::dr_grpo || options.max_tokens > 0, ExitCode::usage,
          "dr_grpo divides by max_tokens, which must be at least 1, not ", options.max_tokens);
  require(options.beta == 0 || logp_ref.defined(), ExitCode::usage, "beta is ", options.beta,
          ": the KL penalty needs the log-probabilities of the reference policy (logp_ref)");
}

void check_shapes(const at::Tensor& logp, const at::Tensor& mask, const at::Tensor& advantages) {
  TORCH_CHECK(logp.dim() == 2 && logp.numel() > 0, "policy_loss: logp must be (B, T) with at least one token, got ",
              logp.sizes());
  TORCH_CHECK(mask.sizes() == logp.sizes(), "policy_loss: mask must have logp's shape ", logp.sizes(), ", got ",
              mask.sizes());
  TORCH_CHECK(advantages.dim() == 1 && advantages.size(0) == logp.size(0),
              "policy_loss: advantages must be (B), one for each row of logp ", logp.sizes(), ", got ",
              advantages.sizes());
}

// The divisor of the sum over all tokens, (B, 1) or 0-dim. `lengths` (B, 1): tokens of each row.
at::Tensor divisor(const PolicyOptions& options, const PolicyWindow& window, const at::Tensor& lengths,
                   const at::Tensor& tokens) {
  const auto B = static_cast<double>(lengths.size(0));
  const at::Tensor rows = window.rows.defined() ? window.rows.to(lengths.scalar_type()) : at::full_like(tokens, B);
  switch (options.aggregation) {
    case PolicyAggregation::dapo:
      return tokens;
    case PolicyAggregation::bnpo:
      return lengths.sum().clamp_min(1) * rows / B;
    case PolicyAggregation::grpo:
      return lengths.clamp_min(1) * rows;
    case PolicyAggregation::dr_grpo:
      return rows * static_cast<double>(options.max_tokens);
  }
  fail(ExitCode::unexpected, "policy_loss does not implement this aggregation");
}

}  // namespace

GroupAdvantages group_advantages(const at::Tensor& rewards, const at::Tensor& counts, AdvantageScale scale,
                                 double eps) {
  TORCH_CHECK(rewards.dim() == 2 && rewards.size(1) > 0 && at::isFloatingType(rewards.scalar_type()),
              "group_advantages: rewards must be floating-point numbers (G, N), got ", rewards.scalar_type(), " ",
              rewards.sizes());
  TORCH_CHECK(!counts.defined() || (counts.dim() == 1 && counts.size(0) == rewards.size(0)),
              "group_advantages: counts must be (G) for rewards ", rewards.sizes(), ", got ", counts.sizes());
  const at::NoGradGuard no_grad;
  const at::Tensor there = group_mask(rewards, counts), absent = there.logical_not();
  const at::Tensor r = rewards.to(at::kDouble).masked_fill(absent, 0);
  const at::Tensor count = there.sum(1, /*keepdim=*/true).to(at::kDouble);
  const at::Tensor mean = r.sum(1, true) / count.clamp_min(1);
  // The mean of equal rewards may differ from them by rounding, which must not become an advantage.
  const auto extreme = [&](double beyond) { return rewards.to(at::kDouble).masked_fill(absent, beyond); };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kLeast = std::numeric_limits<double>::min();  // avoids 0 / 0 with eps 0
  at::Tensor same = extreme(-kInfinity).amax(1).le(extreme(kInfinity).amin(1)).logical_or(count.squeeze(1).lt(2));
  const at::Tensor difference = (r - mean).masked_fill(absent.logical_or(same.unsqueeze(1)), 0);
  const at::Tensor std = deviation(difference.square().sum(1, true), count);

  GroupAdvantages out;
  at::Tensor values = difference;
  if (scale == AdvantageScale::group) values = difference / (std + eps).clamp_min(kLeast);
  if (scale == AdvantageScale::batch) {
    const at::Tensor all = count.sum();
    const at::Tensor spread = (r - r.sum() / all.clamp_min(1)).masked_fill(absent, 0);
    values = difference / (deviation(spread.square().sum(), all) + eps).clamp_min(kLeast);
  }
  if (scale == AdvantageScale::compat) {
    same = same.logical_or(std.squeeze(1).lt(kCompatLeastStd));
    values = (difference / std.clamp_min(kCompatLeastStd)).clamp(-kCompatLargest, kCompatLargest);
    values = values.masked_fill(same.unsqueeze(1), 0);
  }
  const at::Tensor groups = count.squeeze(1).gt(0);
  out.values = values.to(rewards.scalar_type());
  out.zero_variance = same.logical_and(groups);
  out.frac_zero_std = (out.zero_variance.sum().to(at::kDouble) / groups.sum().clamp_min(1)).to(at::kFloat);
  return out;
}

PolicyLoss policy_loss(const at::Tensor& logp, const at::Tensor& logp_old, const at::Tensor& logp_ref,
                       const at::Tensor& mask, const at::Tensor& advantages, const PolicyOptions& options,
                       const PolicyWindow& window, const at::Tensor& entropy) {
  check_shapes(logp, mask, advantages);
  check_policy_options(options, logp_ref);
  const at::ScalarType type = logp.scalar_type();
  const at::Tensor active = mask.to(at::kBool), m = active.to(type), A = advantages.detach().to(type).unsqueeze(1);
  const at::Tensor lengths = m.sum(1, /*keepdim=*/true);
  const at::Tensor tokens = (window.tokens.defined() ? window.tokens.to(type) : m.sum()).clamp_min(1);
  // Zero masked positions before exp: an infinite ratio there would give the gradient 0 * infinity.
  const auto difference = [&](const at::Tensor& a, const at::Tensor& b) {
    return (a - b).masked_fill(active.logical_not(), 0);
  };
  const auto mean = [&](const at::Tensor& x) { return (x.detach() * m).sum() / tokens; };

  at::Tensor log_ratio = difference(logp, logp_old.defined() ? logp_old.detach() : logp.detach());
  if (options.ratio == RatioLevel::sequence) {
    log_ratio = (log_ratio.sum(1, true) / lengths.clamp_min(1)).expand_as(logp);
  }
  const at::Tensor ratio = log_ratio.exp();
  const at::Tensor capped = options.delta ? ratio.clamp_max(*options.delta) : ratio;
  const at::Tensor clipped = ratio.clamp(1 - options.epsilon_low, 1 + options.epsilon_high);
  at::Tensor term = at::minimum(capped * A, clipped * A).neg();

  PolicyLoss out;
  out.kl = at::zeros_like(tokens);
  if (logp_ref.defined()) {
    const at::Tensor divergence = k3(difference(logp_ref.detach(), logp));
    if (options.beta != 0) term = term + options.beta * divergence;
    out.kl = mean(divergence);
  }
  out.loss = (term * m / divisor(options, window, lengths, tokens)).sum();

  const at::Tensor r = ratio.detach();
  out.clip_low = mean(r.lt(1 - options.epsilon_low).logical_and(A.lt(0)));
  out.clip_high = mean(r.gt(1 + options.epsilon_high).logical_and(A.gt(0)));
  out.ratio_mean = mean(r);
  out.ratio_max = (r * m).max();
  if (entropy.defined()) out.entropy = mean(entropy.masked_fill(active.logical_not(), 0));
  return out;
}

}  // namespace hrm::objectives

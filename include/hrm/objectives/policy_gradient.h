#pragma once
// Group relative policy optimization (GRPO) and its variants: advantages from the rewards of several completions of a
// prompt, and the clipped surrogate loss. Sources: GRPO arXiv 2402.03300; DAPO 2503.14476 (asymmetric clip, sum over
// the batch's tokens); Dr. GRPO 2503.20783 (constant length, no scaling); GSPO 2507.18071 (sequence-level ratio);
// two-sided clip 2505.07291; k3 http://joschu.net/blog/kl-approx.html.
//
// Log-probabilities come from hrm/objectives/token_log_probs.h. Nothing waits for the device. Shapes: G prompts, N
// completions of each, B rows (completions), T tokens.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "hrm/config/fine_tuning_settings.h"

namespace hrm::objectives {

// The divisor of the difference from the group's mean: the group's standard deviation, that of all rewards of the
// batch, or none.
//
// compat: the group's, without eps, 0 if it is below 1e-8, clamped to -10..10.
using config::AdvantageScale;

struct GroupAdvantages {
  at::Tensor values;         // (G, N) in the dtype of the rewards; 0 beyond a group's count
  at::Tensor zero_variance;  // (G) bool: all rewards of the group are equal, or it has fewer than two completions
  at::Tensor
      frac_zero_std;  // 0-dim float32: fraction of groups with completions that have zero variance, i.e. teach nothing
};

// advantage = (reward - mean of the group) / (standard deviation + eps), with divisor n - 1. Exactly 0 in groups of
// equal rewards, despite rounding of their mean. `rewards`: (G, N) float32 or float64. `counts`: (G) integer, the
// number of completions of each group, which come first in its row (undefined: all N). Computed in float64; not
// differentiable.
GroupAdvantages group_advantages(const at::Tensor& rewards, const at::Tensor& counts, AdvantageScale scale,
                                 double eps = 1e-4);

// How token terms are reduced:
//    dapo     sum / tokens of the window
//    bnpo     sum / tokens of this batch
//    grpo     mean over rows of the mean over a row's tokens
//    dr_grpo  sum / (rows * max_tokens)
using config::PolicyAggregation;

// token: exp(logp - logp_old) per token. sequence: exp of its mean over the row's tokens, used for all of them.
using config::RatioLevel;

struct PolicyOptions {
  PolicyAggregation aggregation = PolicyAggregation::dapo;
  RatioLevel ratio = RatioLevel::token;
  double epsilon_low = 0.2, epsilon_high = 0.2;  // the ratio is clipped to 1 - epsilon_low .. 1 + epsilon_high
  std::optional<double> delta = std::nullopt;    // upper bound of the ratio; must exceed 1 + epsilon_high
  double beta = 0;                               // weight of the KL divergence from the reference policy
  int64_t max_tokens = 0;                        // dr_grpo: the maximum completion length
};

// Totals of the accumulation window over all micro-batches and ranks; 0-dim float32. Undefined: this batch is the
// window. With them, losses and metrics of micro-batches and ranks add up to those of the whole window. Exceptions:
// combine ratio_max by the maximum, and bnpo's loss by definition adds up only for equal numbers of tokens.
struct PolicyWindow {
  at::Tensor tokens;  // tokens left by the masks
  at::Tensor rows;    // completions
};

// 0-dim float32 (float64 with float64 logp). Only `loss` is differentiable. Fractions and means are over the window's
// tokens.
struct PolicyLoss {
  at::Tensor loss;
  at::Tensor clip_low;    // fraction with ratio < 1 - epsilon_low and a negative advantage
  at::Tensor clip_high;   // fraction with ratio > 1 + epsilon_high and a positive advantage
  at::Tensor kl;          // mean of k3 (without beta); 0 without logp_ref
  at::Tensor ratio_mean;  // of pi / pi_old, before clipping
  at::Tensor ratio_max;
  at::Tensor entropy;  // mean; undefined if no `entropy` was given
};

// Term of a token, after r = min(r, delta) if delta is set:
//    -min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) + beta * k3
//    k3 = exp(d) - d - 1, d = logp_ref - logp
//
// Arguments:
//    logp (B, T)        differentiable
//    logp_old (B, T)    of the policy that sampled; undefined: logp itself, for the first update after sampling (then
//    the
//                       ratios are 1, but the gradient is not 0)
//    logp_ref (B, T)    may be undefined if beta is 0
//    mask (B, T)        bool or number, 1 for completion tokens that count; at least one element
//    advantages (B)
//    entropy (B, T)     or undefined
//
// Values where the mask is 0 have no effect, whatever they are. Throws c10::Error that names the shapes, and
// Error(usage) for contradictory options.
PolicyLoss policy_loss(const at::Tensor& logp, const at::Tensor& logp_old, const at::Tensor& logp_ref,
                       const at::Tensor& mask, const at::Tensor& advantages, const PolicyOptions& options,
                       const PolicyWindow& window = {}, const at::Tensor& entropy = {});

}  // namespace hrm::objectives

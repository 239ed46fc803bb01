#pragma once
// Group relative policy optimisation (GRPO) and its relatives: advantages from rewards of several answers to one
// prompt, and the clipped surrogate. Sources: GRPO arXiv 2402.03300; DAPO 2503.14476 (asymmetric clip, sum over the
// tokens of the batch); Dr. GRPO 2503.20783 (constant length, no scaling); GSPO 2507.18071 (ratio of sequences);
// two-sided clip 2505.07291; k3 http://joschu.net/blog/kl-approx.html. Log-probabilities come from
// hrm/objectives/token_log_probs.h. Shapes: G prompts, N answers to each, B rows (answers), T tokens. Nothing waits for
// the device.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "hrm/config/fine_tuning_settings.h"

namespace hrm::objectives {

// Divisor of the difference from the group's mean: the group's standard deviation, that of all rewards of the batch, or
// nothing. compat: the group's, without eps, 0 if it is below 1e-8, clamped to -10..10.
using config::AdvantageScale;

struct GroupAdvantages {
  at::Tensor values;         // (G, N) in the dtype of the rewards; 0 beyond a group's count
  at::Tensor zero_variance;  // (G) bool: all rewards of the group are equal, or it has fewer than two answers
  at::Tensor frac_zero_std;  // 0-dim float32: share of these among groups with answers: prompts that teach nothing
};

// advantage = (reward - mean of the group) / (standard deviation + eps), divisor n - 1; exactly 0 in groups of equal
// rewards, whatever rounding does to their mean. rewards (G, N) float32 or float64; counts (G) integer: only the first
// counts[g] completions of a group exist (undefined: all N). Computed in float64. Not differentiable.
GroupAdvantages group_advantages(const at::Tensor& rewards, const at::Tensor& counts, AdvantageScale scale,
                                 double eps = 1e-4);

// How the tokens' terms become one number. dapo: sum / tokens of the window. bnpo: sum / tokens of this batch. grpo:
// mean over rows of the mean over a row's tokens. dr_grpo: sum / (rows * max_tokens).
using config::PolicyAggregation;

// token: exp(logp - logp_old) of each token; sequence: exp of its mean over the row's tokens, for all of them.
using config::RatioLevel;

struct PolicyOptions {
  PolicyAggregation aggregation = PolicyAggregation::dapo;
  RatioLevel ratio = RatioLevel::token;
  double epsilon_low = 0.2, epsilon_high = 0.2;  // the ratio counts within 1 - epsilon_low .. 1 + epsilon_high
  std::optional<double> delta = std::nullopt;    // the ratio is never taken for more than this; above 1 + epsilon_high
  double beta = 0;                               // weight of the KL divergence from the reference policy
  int64_t max_tokens = 0;                        // dr_grpo: the longest answer that generation allows
};

// Sums over the accumulation window, all micro-batches and ranks; 0-dim float32. Undefined: this batch is the window.
// With them, losses and metrics of micro-batches and ranks add up to those of the whole. Exceptions: ratio_max is a
// maximum, and bnpo's loss adds up only for equal numbers of tokens, by its definition.
struct PolicyWindow {
  at::Tensor tokens;  // tokens that the masks leave
  at::Tensor rows;    // answers
};

// 0-dim float32 (float64 with float64 logp). Only `loss` is differentiable. Shares and means are over the window's
// tokens.
struct PolicyLoss {
  at::Tensor loss;
  at::Tensor clip_low;    // share with ratio < 1 - epsilon_low and a negative advantage
  at::Tensor clip_high;   // share with ratio > 1 + epsilon_high and a positive advantage
  at::Tensor kl;          // mean of k3 (without beta); 0 without logp_ref
  at::Tensor ratio_mean;  // of pi / pi_old, before clipping
  at::Tensor ratio_max;
  at::Tensor entropy;  // mean; undefined without `entropy`
};

// Term of a token: -min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) + beta * k3, with k3 = exp(d) - d - 1, d =
// logp_ref - logp. If delta is set, r = min(r, delta) first.
//
// logp (B, T) differentiable. logp_old (B, T) of the policy that sampled; undefined: logp itself (the first update
// after sampling: ratios are 1, the gradient is not 0). logp_ref (B, T), may be undefined if beta is 0. mask (B, T)
// bool or number, 1 for completion tokens that count, at least one element. advantages (B). entropy (B, T) or
// undefined. Values where the mask is 0 have no effect. Throws c10::Error that names the shapes, Error(usage) for
// contradicting options.
PolicyLoss policy_loss(const at::Tensor& logp, const at::Tensor& logp_old, const at::Tensor& logp_ref,
                       const at::Tensor& mask, const at::Tensor& advantages, const PolicyOptions& options,
                       const PolicyWindow& window = {}, const at::Tensor& entropy = {});

}  // namespace hrm::objectives

#pragma once
// Polychromic training: cross-entropy minus lambda times the expected diversity D of n completions of a prompt. Sampled
// tokens have no derivative, so the score function estimates the gradient of the expectation,
//   grad E[D(y_1..y_n)] = E[sum_i A_i grad log pi(y_i)],  A_i = D - b_i with b_i independent of y_i
// (Williams 1992; leave-one-out baselines: Kool et al. 2019). The set form is that of polychromic objectives (arXiv
// 2509.25424) and Poly-EPO (2604.17654). Shapes: G prompts, N completions each, B = G N rows, T tokens, S subsets of n
// completions. Nothing waits for the device.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hrm/config/fine_tuning_settings.h"
#include "hrm/nn/lm_head.h"

namespace hrm::objectives {

// What a diversity metric says of groups of N answers. float32 or float64, one type.
struct GroupDiversity {
  at::Tensor totals;  // (G): D of all answers of a group
  at::Tensor rows;    // (G, N): how far an answer is from the others of its group
  at::Tensor loo;     // (G, N): D of the group without this answer, 0 where fewer than two are left
};

// leave_one_out: D without the completion; for N = 2 that is 0 for the one text left, so the running mean replaces it.
// running_mean: the mean of D over earlier steps, the same for all completions. none: A_i = D.
using config::DiversityBaseline;

// Mean of D over earlier steps, the last counting most. `state` belongs to a resume; it keeps its address.
struct RunningDiversity {
  at::Tensor state;  // (2) float64: sum of D and number of groups, both decayed

  // 0-dim float64; 0 before the first add().
  at::Tensor mean() const;
  // After a step's advantages are made: the baseline of a step must not know its answers. `sum` and `groups` 0-dim: of
  // D and of the groups of all ranks.
  void add(const at::Tensor& sum, const at::Tensor& groups, double decay = 0.99);
};
RunningDiversity make_running_diversity(at::Device device);

// A_i of the score function, (G, N) in the dtype of the metric. `running` is read where the baseline asks for it.
at::Tensor score_advantages(const GroupDiversity& diversity, DiversityBaseline baseline,
                            const RunningDiversity& running);

// All subsets of n of N answers, (S, N) bool, S = N! / (n! (N-n)!): ordered by what they leave out, so that with n =
// N-1 row i is the group without answer i. On the CPU: move it to the metric's device once, so that the functions below
// wait for nothing. Error(usage) unless 1 <= n < N and S is at most 100,000.
at::Tensor subset_members(int64_t N, int64_t n);

// D of each subset if D is the mean of a distance over pairs. distances (G, N, N) symmetric, the diagonal is not read;
// members (S, N) bool, all rows with the same number of completions -> (G, S); 0 for subsets of one.
at::Tensor subset_diversity(const at::Tensor& distances, const at::Tensor& members);

// diversity: f(set) = D(set). mul: f(set) = mean over the set of R_i, times D(set), so only good completions gain by
// being different.
enum class SetMode { diversity, mul };

// f of each subset, (G, S): subsets' D (G, S), rewards (G, N) (unread for SetMode::diversity, may be undefined).
at::Tensor set_values(const at::Tensor& subset_totals, const at::Tensor& rewards, const at::Tensor& members,
                      SetMode mode);

// A_i = n/(N-n) * mean over subsets with i of (f(set) - mean of f over all subsets) = n/N * (mean of f over subsets
// with i - mean over those without): Poly-EPO's marginal advantage times n/(N-n), with which sum_i A_i grad log pi(y_i)
// is an unbiased estimate of grad E[f(n answers)]. values (G, S), members (S, N) of subset_members -> (G, N).
at::Tensor marginal_advantages(const at::Tensor& values, const at::Tensor& members);

struct AdvantageShaping {
  // Divide by the root of the mean square (plus 1e-4) over the batch. Not by the standard deviation: a baseline has
  // centred advantages, and those of two answers, which are equal, would be divided by 0.
  bool normalize = false;
  double clip = 0;  // then clamp to -clip..clip; 0: no bound
};

// Advantages (G, N) as the loss uses them, in their own dtype (float32 or float64). `barred` (G, N) bool or undefined:
// completions that must not gain by being different (empty or degenerate ones); at the end, a positive advantage of
// theirs becomes 0. `mean_square`: 0-dim, over the advantages of all ranks; undefined: over these.
at::Tensor shape_advantages(const at::Tensor& advantages, const AdvantageShaping& shaping,
                            const at::Tensor& barred = {}, const at::Tensor& mean_square = {});

// Weights (B, T) with which  sum over tokens of weight * -log pi  is
//   L_div = -lambda / groups * sum_g sum_i A_gi * sum_t log pi(y_git) * mask / Z.
// advantages (G, N); mask (B, T) in the order g * N + i, 1 for the completion's tokens including the one that ends it.
// groups: 0-dim, those of the accumulation window on all ranks, so that micro-batches add up (undefined: G). Z: 1 for
// the exact gradient, or the longest completion allowed, which keeps the term's size when completions grow. In the
// dtype of the advantages.
at::Tensor score_weights(const at::Tensor& advantages, const at::Tensor& mask, double lambda, double Z = 1,
                         const at::Tensor& groups = {});

struct ScoreLoss {
  at::Tensor loss;   // 0-dim, differentiable; a number without meaning of its own: its gradient is what it is for
  at::Tensor log_p;  // (B, T), not differentiable, 0 where the id is data::kIgnoreLabel
};

// L_div from hidden states, with gradients made in the same pass over the logits (chunked_cross_entropy). hidden
// (B, T, D) of a pass over prompt and completion without dropout; ids (B, T): the target of hidden[b, t], or
// data::kIgnoreLabel for no loss; weights (B, T) of score_weights; temperature that of the sampler.
ScoreLoss score_loss(const at::Tensor& hidden, const nn::LmHead& head, const at::Tensor& ids, const at::Tensor& weights,
                     double temperature = 1, int64_t chunk = 4096);

// The objective compat, in which D is a constant of the loss: -lambda * mean of D, 0-dim, without gradient. `groups` as
// above: then the sum of D over these, so that micro-batches add up.
at::Tensor constant_term(const at::Tensor& totals, double lambda, const at::Tensor& groups = {});

}  // namespace hrm::objectives

#pragma once
// Polychromic training: cross-entropy minus lambda times the expected diversity D of n completions of one prompt.
// Sampled tokens have no derivative, so the score function estimates the gradient of the expectation,
//    grad E[D(y_1..y_n)] = E[sum_i A_i grad log pi(y_i)],  A_i = D - b_i with b_i independent of y_i
// (Williams 1992; leave-one-out baselines: Kool et al. 2019). The set form follows polychromic objectives (arXiv
// 2509.25424) and Poly-EPO (2604.17654). Nothing waits for the device.
//
// Shapes: G prompts, N completions of each, B = G N rows, T tokens, S subsets of n completions.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hrm/config/fine_tuning_settings.h"
#include "hrm/nn/lm_head.h"

namespace hrm::objectives {

// A diversity metric of groups of N completions. All float32 or all float64.
struct GroupDiversity {
  at::Tensor totals;  // (G): D of all completions of a group
  at::Tensor rows;    // (G, N): distance of a completion from the others of its group
  at::Tensor loo;     // (G, N): D of the group without this completion, 0 if fewer than two are left
};

// leave_one_out: D without the completion. With N = 2 that is 0, because one text is left; the running mean replaces
// it.
//
// running_mean: the mean of D over earlier steps, the same for all completions. none: A_i = D.
using config::DiversityBaseline;

// Exponentially weighted mean of D over earlier steps. A resume restores `state`, whose address is stable.
struct RunningDiversity {
  at::Tensor state;  // (2) float64: sum of D and number of groups, both decayed

  // 0-dim float64; 0 before the first add().
  at::Tensor mean() const;
  // Call after a step's advantages are computed: the baseline of a step must not depend on its completions. `sum` and
  // `groups` are 0-dim: the sum of D and the number of groups over all ranks.
  void add(const at::Tensor& sum, const at::Tensor& groups, double decay = 0.99);
};
RunningDiversity make_running_diversity(at::Device device);

// A_i of the score function, (G, N) in the dtype of the metric. `running` is read only if the baseline needs it.
at::Tensor score_advantages(const GroupDiversity& diversity, DiversityBaseline baseline,
                            const RunningDiversity& running);

// All subsets of n of N completions, (S, N) bool, S = N! / (n! (N-n)!), ordered by what they leave out: with n = N-1
// row i is the group without completion i. The result is on the CPU. Move it to the metric's device once, so that the
// functions below do not synchronise. Throws Error(usage) unless 1 <= n < N and S is at most 100,000.
at::Tensor subset_members(int64_t N, int64_t n);

// D of each subset if D is the mean of a distance over pairs. `distances`: (G, N, N) symmetric, diagonal ignored.
// `members`: (S, N) bool, the same number of completions in all rows. Returns (G, S), 0 for subsets of one.
at::Tensor subset_diversity(const at::Tensor& distances, const at::Tensor& members);

// diversity: f(set) = D(set).
//
// mul: f(set) = D(set) times the mean of R_i over the set, so that only good completions gain by being different.
enum class SetMode { diversity, mul };

// f of each subset, (G, S), from the subsets' D (G, S) and rewards (G, N). SetMode::diversity does not read the
// rewards, which may then be undefined.
at::Tensor set_values(const at::Tensor& subset_totals, const at::Tensor& rewards, const at::Tensor& members,
                      SetMode mode);

// A_i = n/(N-n) * mean over subsets with i of (f(set) - mean of f over all subsets)
//        = n/N * (mean of f over subsets with i - mean over those without).
// This is Poly-EPO's marginal advantage times n/(N-n). With that factor sum_i A_i grad log pi(y_i) is an unbiased
// estimate of grad E[f(n completions)]. Shapes: values (G, S), members (S, N) of subset_members -> (G, N).
at::Tensor marginal_advantages(const at::Tensor& values, const at::Tensor& members);

struct AdvantageShaping {
  // Divide by the root mean square over the batch (plus 1e-4). The standard deviation does not work: the baseline
  // already centres the advantages, and those of two completions are equal, which would divide by 0.
  bool normalize = false;
  double clip = 0;  // then clamp to -clip..clip; 0: no bound
};

// Shapes advantages (G, N) for the loss, in their own dtype (float32 or float64). `barred`: (G, N) bool or undefined,
// completions that must not gain by being different (empty or degenerate ones). Their positive advantages become 0 at
// the end. `mean_square`: 0-dim, of the advantages of all ranks; undefined: of these advantages.
at::Tensor shape_advantages(const at::Tensor& advantages, const AdvantageShaping& shaping,
                            const at::Tensor& barred = {}, const at::Tensor& mean_square = {});

// Weights (B, T) such that the sum over tokens of weight * -log pi is
//    L_div = -lambda / groups * sum_g sum_i A_gi * sum_t log pi(y_git) * mask / Z.
// `advantages`: (G, N). `mask`: (B, T) in the order g * N + i, 1 for the completion's tokens including the end token.
// `groups`: 0-dim, the groups of the accumulation window on all ranks, so that micro-batches add up (undefined: G).
//
// `Z`: 1 for the exact gradient, or the maximum completion length, which keeps the term's size when completions grow.
// Returns the dtype of the advantages.
at::Tensor score_weights(const at::Tensor& advantages, const at::Tensor& mask, double lambda, double Z = 1,
                         const at::Tensor& groups = {});

struct ScoreLoss {
  at::Tensor loss;   // 0-dim, differentiable; only its gradient is meaningful
  at::Tensor log_p;  // (B, T), not differentiable, 0 where the id is data::kIgnoreLabel
};

// L_div from hidden states; computes the gradients in the same pass over the logits (chunked_cross_entropy). `hidden`:
// (B, T, D) from a pass over prompt and completion without dropout. `ids`: (B, T), the token that hidden[b, t]
// predicts, or data::kIgnoreLabel for no loss. `weights`: (B, T) from score_weights. `temperature`: the sampler's.
ScoreLoss score_loss(const at::Tensor& hidden, const nn::LmHead& head, const at::Tensor& ids, const at::Tensor& weights,
                     double temperature = 1, int64_t chunk = 4096);

// The objective compat, in which D is a constant of the loss: -lambda * mean of D, 0-dim, without gradient. With
// `groups` (see score_weights) it is the sum of D over these, so that micro-batches add up.
at::Tensor constant_term(const at::Tensor& totals, double lambda, const at::Tensor& groups = {});

}  // namespace hrm::objectives

#pragma once
// Gradients of a geometric memory without autograd: a free phase, nudged phases, and the difference of closed-form
// statistics of both.
//
// Equilibrium propagation (Scellier and Bengio 2017, arXiv 1602.05179): if s_beta minimises E + beta C, then
// dC(s_0)/dp = d/dbeta dE/dp(s_beta) at beta = 0. The symmetric quotient errs by O(beta^2), the one-sided one by
// O(beta) (Laborieux et al. 2021, arXiv 2006.03824).

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "hrm/models/geometric_memory.h"

namespace hrm::objectives {

enum class ContrastiveRule {
  symmetric,  // (dE/dp(+beta) - dE/dp(-beta)) / (2 beta)
  one_sided,  // (dE/dp(beta) - dE/dp(0)) / beta
  scalar,     // Trainer2's, for comparison: metric and angles by one number, and the readout; no gradient
  readout,    // the readout alone
  backprop,   // autograd through the steps of the free phase, for comparison
};

struct ContrastiveOptions {
  ContrastiveRule rule = ContrastiveRule::symmetric;
  int64_t steps = 64;        // of the free phase
  int64_t nudge_steps = 64;  // of a nudged phase, from the free equilibrium
  bool beta_per_row = true;  // rules symmetric and one_sided: each row has a beta of its own, see nudge_factors()
  double most_beta = 0.1;    // of a row; the window's beta may be larger
};

// By how much more than beta each row may be nudged: min(1 / min(1, 4 u), most), where u = 1 - softmax(logits)[target]
// is the row's error.
//
// Why: the force of the nudge is in proportion to u. With one beta for all, rows that are nearly right move by less
// than float32 rounds, and their noise in the sum hides the gradient of the others.
//
// Bound: the cost's Hessian by the logits, diag(p) - p p^T with p = softmax, has eigenvalues of at most min(1/2, 2 u)
// (Gershgorin). beta = share * 2 gamma / |W|^2 allows for 1/2. So this row's nudge takes the same share of the energy's
// curvature gamma. Without the coupling of the state's parts, the negative phase raises u to r u at most, with
// r = exp(share r). Such an r exists where share is at most exp(-1) = 0.368.
//
// logits (B, C), targets (B) int64, most 0-dim. Returns (B), at least 1 where most is.
at::Tensor nudge_factors(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& most);

// Of one batch of B rows; 0-dim float32 on the device unless noted.
struct ContrastiveResult {
  at::Tensor loss;                     // mean cross-entropy at the free equilibrium
  at::Tensor accuracy;                 // share of rows whose largest logit is the target's
  at::Tensor speed;                    // mean over rows and steps of the free phase of sqrt(|dX|^2 + cost_eps)
  at::Tensor speed_plus, speed_minus;  // the same of the nudged phases; zero where there is none
  at::Tensor residual;                 // largest change of a state component in the last step of any phase
  at::Tensor beta;                     // mean over the rows; zero where nothing is nudged
  models::Gradients gradients;         // of the mean loss, in the order of the parameters
  ops::GeometricState free;
  at::Tensor drive;  // (B, m): the free state is at drive + free.offset in scaled coordinates
};

// ContrastiveRule::scalar repeats the window from its start with the nudge +beta and takes the difference dL of the
// mean actions R speed. With the mean displacement u of the free phase (start to end, in chart coordinates) and
// w = Q u the "gradients" are -dL/beta of scalar_direction(w, u, k): of the metric's logarithm by g, of the angles by
// theta (contrastive_rules.h). The metric must be diagonal. All else but the readout has none.
//
// Under NoGradGuard but for ContrastiveRule::backprop. Reads nothing from the device; can be captured.
ContrastiveResult contrastive_gradients(const models::GeometricMemory& memory,
                                        const models::GeometricMemory::Window& window, const at::Tensor& inputs,
                                        const at::Tensor& targets, const ContrastiveOptions& options);

struct SpsaOptions {
  int64_t steps = 64;      // of the free phases; of no meaning where the caller gives the loss
  double sigma = 0.01;     // size of a perturbation
  int64_t directions = 4;  // that the gradient averages over
  uint64_t seed = 0;
};

// Simultaneous perturbation (Spall 1992): the mean over directions D of (J(p + sigma D) - J(p - sigma D)) / (2 sigma) D
// with D of random signs, all parameters at once. `counter`, 0-dim int64 on the device, chooses the signs. Both losses
// of a direction are of the same batch. The parameters are perturbed in place and restored to their bits.
// `loss`: J of the parameters as they are, 0-dim, called without autograd.
models::Gradients spsa_gradients(const std::vector<at::Tensor>& parameters, const std::function<at::Tensor()>& loss,
                                 const at::Tensor& counter, const SpsaOptions& options);
// J is the mean cross-entropy after options.steps free steps.
models::Gradients spsa_gradients(models::GeometricMemory& memory, const at::Tensor& inputs, const at::Tensor& targets,
                                 const at::Tensor& counter, bool half_values, const SpsaOptions& options);

}  // namespace hrm::objectives

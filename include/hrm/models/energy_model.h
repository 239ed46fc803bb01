#pragma once
// Models that are an energy of their state: the state relaxes to a minimum of the energy, and the logits are read from
// it. Their gradient comes from two relaxations, without autograd (contrastive learning, equilibrium propagation).
// Source: Scellier and Bengio, "Equilibrium Propagation", Frontiers in Computational Neuroscience 11, 2017.
//
// Notation: E(s; p) energy of state s with parameters p, C(s) cost, mean over the B rows of a batch. s_beta is the
// minimum of E + beta C. Then
//    dC(s_0)/dp = (dE/dp(s_beta) - dE/dp(s_-beta)) / (2 beta) + O(beta^2),
// where dE/dp has a closed form and is local: it needs the states beside the parameter and nothing else. The symmetric
// quotient is from Laborieux et al., "Scaling Equilibrium Propagation to Deep ConvNets", Frontiers in Neuroscience 15,
// 2021. With 0 instead of -beta the error is O(beta).

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

namespace hrm::models {

// How strongly, and how, the cost moves the state.
struct Nudging {
  double beta = 0.1;
  // Beta is at most this share of the largest one for which E - beta C is sure to have a minimum without the coupling
  // of the state's parts. The limit follows the parameters, on the device. Infinity: no limit.
  double share = 0.2;
  bool one_sided = false;  // phases 0 and +beta instead of +beta and -beta
  int64_t steps = 0;       // relaxation steps of the nudged phases; 0: as many as in the free phase
};

// What a training step needs of a batch. Tensors are on the device, in the dtype of the parameters where nothing else
// is said.
struct Contrast {
  at::Tensor loss;      // 0-dim: mean cost in the free state
  at::Tensor correct;   // 0-dim int64: rows whose largest logit is that of their label
  at::Tensor beta;      // 0-dim: the one that was used; 0 for a gradient by autograd
  at::Tensor residual;  // (2): largest move of a state in the last step of the free and of the nudged phases
  std::vector<at::Tensor> gradients;  // of the mean cost, in the order of parameters(); undefined: zero
};

// All functions run on the current stream. Those without autograd read nothing back and have fixed numbers of steps, so
// a CUDA graph can capture them. `inputs`: (B, ...) in the dtype of the parameters; `labels`: (B) int64 within
// 0..classes-1, unchecked.
class EnergyModel : public torch::nn::Module {
 public:
  // (B, classes) of the free state. Without autograd.
  virtual at::Tensor logits(const at::Tensor& inputs) const = 0;

  // Both phases and their gradients. Without autograd: no result has a grad_fn, whatever the parameters require.
  virtual Contrast contrast(const at::Tensor& inputs, const at::Tensor& labels, const Nudging& nudging) const = 0;

  // The gradient by autograd through all steps of the free phase, as the reference for tests and benchmarks. It keeps
  // the states of all steps.
  virtual Contrast backprop(const at::Tensor& inputs, const at::Tensor& labels) const = 0;

  // Puts the parameters back into the region where the energy is strongly convex. In place, without autograd, reads
  // nothing back. Call it after initialisation and after each update. `skip` (0-dim float32, non-zero = change nothing)
  // may be undefined.
  virtual void project_(const at::Tensor& skip) = 0;
  void project_() { project_(at::Tensor()); }

  // Adds the gradients, all defined, to those of parameters(), in place; a parameter without one gets a buffer first.
  void add_gradients(const Contrast& contrast);
};

}  // namespace hrm::models

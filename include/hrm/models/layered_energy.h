#pragma once
// A layered network as an energy (Scellier and Bengio 2017; see hrm/models/energy_model.h): each layer has symmetric
// weights, so it drives the layer above, and the layer above drives it back.
//
// Shapes: B rows, x = h_0 inputs, L hidden layers. Layer l has activities h_l in (0, 1) and couples to the one below by
// a linear map A_l with bias b_l. With the negative entropy Psi(h) = sum h log h + (1 - h) log(1 - h):
//    E(h) = sum_l [ Psi(h_l) - h_l . (A_l h_(l-1) + b_l) ]
//    C(h) = -log softmax(W h_L + b)[label]                                      cost, with the readout W, b
// At a minimum h_l = sigmoid(A_l h_(l-1) + b_l + A_(l+1)^T h_(l+1)): a logistic network with feedback.
//
// Activation: logistic, instead of the clamp to [0, 1] of the paper. A clamp has no derivative where a unit enters or
// leaves it, and the phases +beta and -beta then differ by more than O(beta^2). It also stops the gradient of clamped
// units. Psi has curvature of at least 4, so E is strongly convex as long as the couplings of hidden layers have a norm
// below 4. project_() sees to it.
//
// Relaxation: in u_l = logit(h_l), the gradient of E by h_l is u_l - (A_l h_(l-1) + b_l + A_(l+1)^T h_(l+1)), and
//    v_l = momentum v_l - dt dE/dh_l,   u_l += v_l
// is mirror descent with momentum. No state leaves (0, 1). Without momentum every step lowers the energy for
// dt = 1 / (1 + (coupling + beta |W|^2 / 2) / 4) (Bauschke, Bolte and Teboulle, "A Descent Lemma Beyond Lipschitz
// Gradient Continuity", Mathematics of Operations Research 42, 2017). coupling is the norm of all A_l between hidden
// layers as one operator. Norms are bounded from above, on the device: |A| <= |(A^T A)^2|_F^(1/4).
// The free phase starts at the activities without feedback; the nudged phases start at the free equilibrium.

#include <memory>

#include "hrm/models/energy_model.h"

namespace hrm::models {

// The linear map between two neighbouring layers. Everything else of the network is the same for any map, for example a
// convolution: activities may have any shape (B, ...), and this class alone knows what it is.
class EnergyLayer : public torch::nn::Module {
 public:
  virtual at::Tensor up(const at::Tensor& below) const = 0;    // A below + b
  virtual at::Tensor down(const at::Tensor& above) const = 0;  // A^T above
  // Sums over the batch of the derivatives of above . (A below + b) by the weight and by the bias.
  virtual at::Tensor weight_statistic(const at::Tensor& below, const at::Tensor& above) const = 0;
  virtual at::Tensor bias_statistic(const at::Tensor& above) const = 0;
  // 0-dim: an upper bound of |A|, the largest singular value. Without autograd.
  virtual at::Tensor norm_bound() const = 0;
  // A *= factor (0-dim), without autograd.
  virtual void scale_(const at::Tensor& factor) = 0;
};

// A full matrix. Parameters: `weight` (out, in) and `bias` (out), float32 and uninitialised. Inputs of more dimensions
// are flattened.
class DenseEnergyLayer final : public EnergyLayer {
 public:
  DenseEnergyLayer(int64_t in, int64_t out, at::Device device);

  at::Tensor up(const at::Tensor& below) const override;
  at::Tensor down(const at::Tensor& above) const override;
  at::Tensor weight_statistic(const at::Tensor& below, const at::Tensor& above) const override;
  at::Tensor bias_statistic(const at::Tensor& above) const override;
  at::Tensor norm_bound() const override;
  void scale_(const at::Tensor& factor) override;

 private:
  at::Tensor weight_, bias_;
};

struct LayeredEnergyOptions {
  int64_t inputs = 0;           // F
  std::vector<int64_t> hidden;  // widths of the hidden layers, from the inputs to the readout
  int64_t classes = 0;
  int64_t free_steps = 64;
  double momentum = 0.5;
  double margin = 0.95;  // project_() keeps the norm of the coupling below 4 times this
};

class LayeredEnergy final : public EnergyModel {
 public:
  // Parameters, float32 and uninitialised: layers.<l>.weight (width, width below), layers.<l>.bias (width),
  // readout.weight (classes, width), readout.bias (classes). Initialise them by nn::init_parameters(), then project_().
  // Buffers: input_mean (inputs), input_deviation (0-dim).
  // Throws Error(usage) for sizes below 1, no hidden layer, and a momentum or margin outside [0, 1) and (0, 1).
  LayeredEnergy(const LayeredEnergyOptions& options, at::Device device);

  at::Tensor logits(const at::Tensor& inputs) const override;
  Contrast contrast(const at::Tensor& inputs, const at::Tensor& labels, const Nudging& nudging) const override;
  Contrast backprop(const at::Tensor& inputs, const at::Tensor& labels) const override;
  using EnergyModel::project_;
  void project_(const at::Tensor& skip) override;

  const LayeredEnergyOptions& options() const { return options_; }

  // The scaling of the inputs that the network is trained on, kept with its weights. All other functions take inputs
  // that are scaled already.
  void set_input_scaling(const at::Tensor& mean, const at::Tensor& deviation);
  const at::Tensor& input_mean() const { return input_mean_; }
  const at::Tensor& input_deviation() const { return input_deviation_; }

  // The free phase and the gradient of the readout; other gradients are undefined. Without autograd.
  Contrast readout_only(const at::Tensor& inputs, const at::Tensor& labels) const;

  // The same network without feedback: logits of the states in which the free phase starts, and their gradient by
  // autograd. The weights need no project_().
  at::Tensor feed_forward_logits(const at::Tensor& inputs) const;
  Contrast feed_forward_backprop(const at::Tensor& inputs, const at::Tensor& labels) const;

  // Per hidden layer the states u of the last step, (B, width).
  struct Relaxed {
    std::vector<at::Tensor> states;
    at::Tensor residual;  // 0-dim: largest move in the last step; 0 without steps
  };
  // The free phase. Differentiable in gradient mode.
  Relaxed relax_free(const at::Tensor& inputs) const;
  // From `start` on, with the energy E + strength C. `strength`: (B, 1), of either sign; `beta`: 0-dim, its largest
  // magnitude.
  Relaxed relax_nudged(const at::Tensor& inputs, const at::Tensor& labels, const std::vector<at::Tensor>& start,
                       const at::Tensor& strength, const at::Tensor& beta, int64_t steps) const;

  // 0-dim, means over the batch. Differentiable by states and parameters in gradient mode.
  at::Tensor energy(const at::Tensor& inputs, const std::vector<at::Tensor>& states) const;
  at::Tensor cost(const std::vector<at::Tensor>& states, const at::Tensor& labels) const;

  // dE/dp at two states, their difference in closed form, for the parameters of `layers` in order. The difference of
  // states is taken first, so that little is lost to rounding where they are close.
  std::vector<at::Tensor> statistics_difference(const at::Tensor& inputs, const std::vector<at::Tensor>& states,
                                                const std::vector<at::Tensor>& minus) const;

  // 0-dim: nudging.beta, or less where the readout is large: the cost's curvature by h_L is at most |W|^2 / 2, that of
  // Psi at least 4.
  at::Tensor beta_of(const Nudging& nudging) const;

  // 0-dim: the coupling's norm over the least curvature of Psi. Below 1 there is one equilibrium; project_() keeps it
  // at the margin or below.
  at::Tensor contraction() const;

 private:
  struct Nudge {
    at::Tensor strength;  // (B, 1); undefined in the free phase
    at::Tensor beta;      // 0-dim
    at::Tensor targets;   // (B, classes)
  };
  std::vector<at::Tensor> start(const at::Tensor& drive) const;
  Relaxed relax(const at::Tensor& drive, std::vector<at::Tensor> states, int64_t steps, const Nudge& nudge) const;
  // Of a free phase: without feedback it starts at the equilibrium.
  int64_t needed_steps() const;
  at::Tensor coupling() const;
  at::Tensor step_size(const Nudge& nudge) const;
  at::Tensor one_hot(const at::Tensor& labels) const;
  at::Tensor logits_of(const std::vector<at::Tensor>& states) const;
  void add_readout_gradients(const at::Tensor& top, const at::Tensor& logits, const at::Tensor& targets,
                             Contrast& result) const;
  Contrast by_autograd(const at::Tensor& inputs, const at::Tensor& labels, int64_t steps) const;

  LayeredEnergyOptions options_;
  std::vector<std::shared_ptr<EnergyLayer>> layers_;
  std::shared_ptr<EnergyLayer> readout_;
  at::Tensor input_mean_, input_deviation_;
};

}  // namespace hrm::models

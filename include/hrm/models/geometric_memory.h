#pragma once
// A geometric memory: an energy over a chart state and a retrieved output, with a metric, a rotor, learned slots and a
// complex field. The contrastive trainer (objectives/contrastive.h) trains it without autograd.
//
// Energy and dynamics are in hrm/ops/geometric_relax.h. The objects and their names (metric, rotor, memory bank,
// resilience, field) are those of the trainer "Trainer2" of https://github.com/JewJitsu11B/Liorhybrid. The energy is
// new: its weights are the retrieval of a modern Hopfield network (Ramsauer et al. 2021, arXiv 2008.02217).

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/nn/parameter.h"
#include "hrm/ops/contrastive_statistics.h"
#include "hrm/ops/geometric_relax.h"

namespace hrm::models {

// What the resilience R of a slot is taken from.
enum class Resilience {
  slots,         // the slot's cell of the field, cell k mod cells
  constitutive,  // the whole field; one R for all slots
  curvature,     // how the whole field bends over its cells; one R for all slots
};

// The metric in the rotated frame.
enum class MetricForm {
  diagonal,  // exp(log_metric)
  blocks,    // symmetric positive definite blocks of two coordinates, by their Cholesky factors
};

// Where the rotor's angles come from.
enum class RotorSource {
  trained,
  keys,  // towards the principal axes of the keys, see project()
};

struct GeometricMemoryOptions {
  int64_t features = 0;  // f: width of an input
  int64_t classes = 0;   // C
  int64_t coords = 16;   // n: dimensions of the chart
  int64_t slots = 128;   // M: learned slots
  int64_t width = 32;    // d: width of values and output
  int64_t angles = 16;   // k: angles of the rotor; 0 = no rotor
  int64_t low_rank = 0;  // r: directions of a learned low-rank part of the metric
  int64_t hidden = 0;    // H: hidden units between input and chart
  int64_t episodes = 0;  // capacity of the ring of episodic slots behind the learned ones
  int64_t field_rows = 4, field_cols = 4, field_dim = 8;
  Resilience resilience = Resilience::slots;
  MetricForm metric = MetricForm::diagonal;  // blocks: coords is even
  RotorSource rotor = RotorSource::trained;
  ops::GeometricConstants constants{.kappa = 20, .gamma = 0.1, .retrieval_beta = 5, .cost_eps = 0.1};
  double margin = 0.95;     // of the condition for one equilibrium, see project()
  double beta_cap = 0.1;    // largest nudge
  double beta_share = 0.2;  // of the nudge up to which the negative phase is stable
  double momentum = 0;      // of the relaxation
};

// An affine map, for parameters named NAME.weight and NAME.bias.
struct AffineParameters : torch::nn::Module {
  AffineParameters(int64_t out, int64_t in, at::Device device);
  at::Tensor weight;  // (out, in)
  at::Tensor bias;    // (out)
};

// Derivatives of a loss, in the order of GeometricMemory::parameter_names(). Undefined: zero.
using Gradients = std::vector<at::Tensor>;

// Parameters: encoder.{weight (n, f or H), bias (n)}, log_metric (n), angles (k), keys (M, n), values (M, d), field
// (rows, cols, field_dim, 2), readout.{weight (C, d), bias (C)}; hidden.{weight (H, f), bias (H)} with hidden units;
// low_rank.{vectors (n, r), log_weights (r)} with a low-rank part; metric_blocks (n / 2, 3), as ops::block_factors
// takes them, in place of log_metric with MetricForm::blocks. Buffers: ring_keys (E, n), ring_values (E, d),
// ring_position and filled (0-dim int64) with episodes; input_mean (f), input_deviation (0-dim); angles (k) with
// RotorSource::keys.
//
// Symbols: B rows, S = M + episodes slots, m = n + r scaled coordinates.
class GeometricMemory : public torch::nn::Module {
 public:
  // Draws the initial weights from `seed` on the CPU, so that they are the same on every device. They obey project().
  // On the meta device there are names and shapes alone.
  GeometricMemory(const GeometricMemoryOptions& options, uint64_t seed, at::Device device);

  const GeometricMemoryOptions& options() const { return options_; }
  // Gradient buffers; empty before build_parameter_set().
  nn::ParameterSet& parameter_set() { return parameter_set_; }
  void build_parameter_set() { parameter_set_.build(*this, at::kFloat); }
  const std::vector<std::string>& parameter_names() const { return names_; }

  // The scaling of the inputs that the memory is trained on, kept with its weights: buffers input_mean (f) and
  // input_deviation (0-dim). drive() takes inputs that are scaled already.
  void set_input_scaling(const at::Tensor& mean, const at::Tensor& deviation);
  const at::Tensor& input_mean() const { return input_mean_; }
  const at::Tensor& input_deviation() const { return input_deviation_; }

  // What stays the same in a window of relaxation steps.
  struct Window {
    ops::GeometricSlots slots;
    at::Tensor scaling;      // (m, n): Qs = [L^T Q; diag(sqrt D) U^T], L = diag(sqrt g) or the blocks' factors
    at::Tensor unscaling;    // (n, n): L^-1 Q; a row X of scaled coordinates has the chart coordinates X[:n] L^-1 Q
    at::Tensor root_metric;  // (n): sqrt g; undefined with MetricForm::blocks
    at::Tensor factors;      // (n / 2, 2, 2): blocks of L; undefined with MetricForm::diagonal
    at::Tensor rotor;        // (n, n): Q
    at::Tensor metric;       // (m, m): Qs Qs^T
    at::Tensor rates;        // (4): dt_x, dt_o, beta, dt_h
    at::Tensor cells;        // (rows * cols): R of each cell; (1) where one R is for all
    at::Tensor up, down;     // of GeometricHidden
  };
  // Differentiable in gradient mode; the rates are constants. `half_values`: values in float16.
  Window prepare(bool half_values) const;

  // inputs (B, f). Several phases may stand one below the other, all of them with the same inputs: R rows, a multiple
  // of B.
  struct Drive {
    at::Tensor inputs;  // (B, f)
    at::Tensor drive;   // (R, m): what pulls X, for ops::geometric_relax
    at::Tensor hidden;  // (R, H): B u + c; undefined without hidden units
  };
  Drive drive(const Window& window, const at::Tensor& inputs) const;
  ops::GeometricState free_phase(const Window& window, const Drive& drive, int64_t steps) const;
  // From `start`, nudged by signs (B) times window.rates' beta.
  ops::GeometricState nudged_phase(const Window& window, const Drive& drive, const ops::GeometricState& start,
                                   const at::Tensor& targets, const at::Tensor& signs, int64_t steps) const;
  // (B, C) of an output o (B, d).
  at::Tensor logits(const at::Tensor& o) const;
  // Chart coordinates (B, n) of scaled ones (B, m).
  at::Tensor chart(const Window& window, const at::Tensor& x) const;

  // sum_b scales_b dE/dp at a state, for all parameters but the readout; closed form. `scales`: (R).
  Gradients energy_gradients(const Window& window, const Drive& drive, const ops::GeometricState& state,
                             const at::Tensor& scales) const;
  // Places a gradient by the name of its parameter. Without a parameter of this name it does nothing.
  void place(Gradients& gradients, std::string_view name, const at::Tensor& gradient) const;

  // The mean cross-entropy after `steps` free steps, differentiable through all of them (plain ATen): the reference
  // that the contrastive gradient is compared with. targets (B) int64.
  at::Tensor backprop_loss(const at::Tensor& inputs, const at::Tensor& targets, int64_t steps) const;

  // Keeps the energy strongly convex: beta_r (R_max^2 g_max / kappa + gamma max |V_k|^2) <= margin < 1, half of it for
  // each term; clamps g to [0.01, 100] and wraps the angles to [-pi, pi). Sufficient for one equilibrium and for
  // geometric convergence: the Hessian is diag(kappa, gamma) + R sum_k w_k c_k'' - beta_r Cov_w(R c', -gamma V), and
  // the covariance is at most the square of those vectors. Blocks of the metric are scaled as wholes. `skip` (0-dim
  // float32, non-zero = change nothing) may be undefined.
  //
  // With RotorSource::keys it also renews the angles: Jacobi rotations (Golub and Van Loan, Matrix Computations,
  // section 8.5) of the keys' covariance, layer by layer, so that the planes of a layer have no covariance left. Each
  // angle is the solution next to the one before, so that axes do not change places. More layers come closer to the
  // principal axes. The gradient takes the angles as constants.
  void project(const at::Tensor& skip);
  // Left side of that condition, 0-dim.
  at::Tensor contraction(const Window& window) const;

  // Writes (x, target) pairs of a batch to the ring, x (B, m) in scaled coordinates, targets (B): key = the row's chart
  // coordinates, value = the readout's row of its target, scaled to 0.9 of the longest value that project() allows.
  // Rows enter in order and overwrite the oldest.
  void commit_episodes(const Window& window, const at::Tensor& x, const at::Tensor& targets, const at::Tensor& skip);

  const at::Tensor& field() const { return field_; }    // (rows, cols, field_dim, 2)
  const at::Tensor& angles() const { return angles_; }  // (k)
  // Root of the sum of squares of all keys, episodes included, 0-dim.
  at::Tensor key_norm() const;
  // Eigenvalues (n) of the metric without its low-rank part.
  at::Tensor metric_eigenvalues() const;

 private:
  at::Tensor slot_resilience(const at::Tensor& cells) const;
  at::Tensor largest_metric() const;
  at::Tensor largest_metric_allowed() const;
  at::Tensor derived_angles() const;
  void project_metric(const at::Tensor& skip);
  at::Tensor effective_kappa() const;
  double longest_value() const;
  at::Tensor cell_resilience() const;
  ops::GeometricHidden hidden_state(const Window& window, const Drive& drive, const at::Tensor& h) const;

  GeometricMemoryOptions options_;
  std::shared_ptr<AffineParameters> encoder_, readout_, hidden_;
  at::Tensor log_metric_, metric_blocks_, angles_, keys_, values_, field_, low_vectors_, low_log_weights_;
  at::Tensor ring_keys_, ring_values_, ring_position_, filled_, input_mean_, input_deviation_;
  std::vector<std::string> names_;
  nn::ParameterSet parameter_set_;
};

}  // namespace hrm::models

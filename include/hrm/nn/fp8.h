#pragma once
// State that lets recursions without gradient multiply in fp8 (hrm/ops/fp8.h).

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "hrm/nn/linear.h"
#include "hrm/state/registry.h"

namespace hrm::nn {

// An e4m3 weight and its slot.
struct Fp8Weight {
  at::Tensor values;
  at::Tensor slot;
};

// The fp8 state of one block. The activation slots belong to the outputs of attention (mixed), the first half of the
// block (half), the SwiGLU gate (act) and the block (output). If an MLP mixes the positions, it runs in 16 bits, and
// qkv, o, mixed and output are undefined. The last block of a level has no output slot either, because nobody reads its
// result in fp8.
struct Fp8Block {
  Fp8Weight qkv, o, gate_up, down;
  at::Tensor mixed, half, act, output;
};

class ReasoningModule;

// The weights of a level that are multiplied in fp8, block by block: qkv and o if the block has attention, then gate_up
// and down.
std::vector<const Linear*> fp8_weights(const ReasoningModule& level);

struct Fp8Level {
  bool active = false;
  at::Tensor input;  // slot of the sum that enters the first block; undefined with mlp_t
  std::vector<Fp8Block> blocks;
};

// The e4m3 copies of all weights of a model's recurrent modules, and the slots of all quantised tensors. A training
// step calls quantize_weights(), runs its passes and calls update_scales(). Both calls are asynchronous device work and
// can be captured. Registered state: "fp8.slots", "fp8.history", "fp8.steps".
class Fp8Recursions : public Stateful {
 public:
  static constexpr const char* kStatePrefix = "fp8.";

  // Finds the ReasoningModules of `model` and gives each its Fp8Level, which recur() uses while active. Build the
  // model's ParameterSet first. `history`: number of past steps that a scale follows; `margin`: see
  // ops::fp8_update_scales_. Starts inactive, with all scales 1 and no steps counted. Throws Error(unexpected) if there
  // are no such modules, or if a block has a convolution.
  Fp8Recursions(torch::nn::Module& model, int64_t history, double margin);

  // Selects fp8 for the recursions. If false, they use the compute dtype, as if there were no Fp8Recursions.
  void set_active(bool active);
  bool active() const { return active_; }

  // Quantises the compute weights, which the other passes read, into the e4m3 copies.
  void quantize_weights() const;
  // Computes new scales from the maxima recorded since the last call.
  void update_scales() const;
  // Sets the weights' scales from their current maxima and keeps the activations' scales. Call before the first step.
  void calibrate_weights() const;
  // Resets to the initial state: all scales 1, no history, no steps counted.
  void forget_scales();

  // Whether an Fp8Evaluation is alive.
  bool evaluating() const { return evaluating_; }

  // Counts a step whose recursions ran in fp8. The caller that runs the steps calls it.
  void count_step() { ++steps_; }
  int64_t steps() const { return steps_; }

  // All slots, (n, 4), weights first.
  const at::Tensor& slots() const { return slots_; }
  int64_t weights() const { return static_cast<int64_t>(weights_.size()); }

  void visit_state(StateVisitor& visitor) override;

 private:
  friend class Fp8Evaluation;

  std::vector<std::shared_ptr<Fp8Level>> levels_;
  std::vector<const Linear*> weights_;
  std::vector<at::Tensor> copies_;
  at::Tensor slots_, history_;
  double margin_;
  int64_t steps_ = 0;
  bool active_ = false, evaluating_ = false;
};

// While alive, evaluates the weights as they were at construction (e.g. the EMA) with the scales of training. The
// destructor restores the slots, so an evaluation does not affect training. Does nothing if `fp8` is null or inactive.
class Fp8Evaluation {
 public:
  explicit Fp8Evaluation(Fp8Recursions* fp8);
  ~Fp8Evaluation();
  Fp8Evaluation(const Fp8Evaluation&) = delete;
  Fp8Evaluation& operator=(const Fp8Evaluation&) = delete;

 private:
  Fp8Recursions* fp8_;
  at::Tensor slots_;
};

}  // namespace hrm::nn

#pragma once
// What a model keeps beside its weights so that recursions without gradient can multiply in 8 bits (hrm/ops/fp8.h).

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "hrm/nn/linear.h"
#include "hrm/state/registry.h"

namespace hrm::nn {

// A weight in e4m3 and its slot.
struct Fp8Weight {
  at::Tensor values;
  at::Tensor slot;
};

// Of one block. The slots of activations belong to the output of the attention, of the block's first half, of the
// SwiGLU's gate and of the block itself. A block that mixes positions by an MLP does so in 16 bits: qkv, o, mixed and
// output are undefined; output also in the last block of a level, whose result nobody reads in 8 bits.
struct Fp8Block {
  Fp8Weight qkv, o, gate_up, down;
  at::Tensor mixed, half, act, output;
};

class ReasoningModule;

// The weights of a level that are multiplied in 8 bits, block by block: qkv and o where there is attention, gate_up,
// down.
std::vector<const Linear*> fp8_weights(const ReasoningModule& level);

struct Fp8Level {
  bool active = false;
  at::Tensor input;  // slot of the sum that enters the first block; undefined where the MLP mixes
  std::vector<Fp8Block> blocks;
};

// The e4m3 copies of all weights of a model's recurrent modules, and the slots of all quantised tensors. A training
// step calls quantize_weights(), runs its passes and calls update_scales(); both are device work that waits for nothing
// and can be captured. Registered state: "fp8.slots", "fp8.history", "fp8.steps".
class Fp8Recursions : public Stateful {
 public:
  static constexpr const char* kStatePrefix = "fp8.";

  // Finds the ReasoningModules of `model`, whose ParameterSet must have been built, and gives each its Fp8Level:
  // recur() uses it from then on while active. `history`: past steps that a scale follows; `margin` as in
  // ops::fp8_update_scales_. All scales are 1 and no step has been counted: inactive.
  Fp8Recursions(torch::nn::Module& model, int64_t history, double margin);

  // Whether recursions run in 8 bits; false: in the compute dtype, as if there were no Fp8Recursions.
  void set_active(bool active);
  bool active() const { return active_; }

  // Writes the weights' e4m3 copies from what the matrix products of other passes read.
  void quantize_weights() const;
  // New scales from the maxima since the last call.
  void update_scales() const;
  // Scales of the weights from their own maxima; those of activations stay. Before the first step.
  void calibrate_weights() const;
  // All scales 1, no history and no step counted, as at the beginning.
  void forget_scales();

  // Whether an Fp8Evaluation lives.
  bool evaluating() const { return evaluating_; }

  // Steps whose recursions ran in 8 bits, counted by whoever runs them.
  void count_step() { ++steps_; }
  int64_t steps() const { return steps_; }

  // All slots, (n, 4), the weights' in front.
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

// While one lives, the weights as they were when it was made (perhaps averages) are evaluated with the scales of
// training; afterwards the slots are what they were, so that an evaluation changes no training. With a null or inactive
// `fp8` it does nothing.
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

#pragma once
// State that lets linear layers train with 8-bit operands in all three products (hrm/ops/fp8_linear.h).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hrm/nn/linear.h"
#include "hrm/ops/fp8_linear.h"
#include "hrm/state/registry.h"

namespace hrm::nn {

// How the layers run in recorded passes. Passes without gradient mode (evaluation, generation) never change: they read
// the weights in the compute dtype and no slot.
enum class Fp8Mode {
  off,      // in the compute dtype
  gather,   // the same, and the slots record the maxima of inputs and gradients
  delayed,  // in 8 bits, with scales that follow the maxima of earlier steps
  current,  // in 8 bits, each tensor with a scale of its own maximum
  rows,     // in 8 bits, each token and each output with a scale of its own; not in the weights' gradients
};

// A weight of at least this many values is wide: passes over memory cost little beside its products, so the backward
// pass recomputes their results. A narrow layer keeps its transposed weight and its input in 8 bits.
constexpr int64_t kFp8WideWeight = int64_t{1} << 22;

struct Fp8LinearsOptions {
  int64_t history = 16;   // number of past steps that a scale follows
  double margin = 0;      // see ops::fp8_update_scales_
  bool e5m2 = true;       // format of the gradients; otherwise e4m3
  bool current = false;   // current scaling in every step, otherwise delayed
  bool rows = false;      // scales for rows in every step
  std::string skip = {};  // patterns of names, with commas between; see without_skipped()
  int64_t wide_weight = kFp8WideWeight;
};

// What all layers share.
struct Fp8Shared {
  Fp8Mode mode = Fp8Mode::off;
  double margin = 0;
  bool e5m2 = true;
  int64_t wide_weight = kFp8WideWeight;
};

// The 8-bit state of one Linear.
class Fp8Layer {
 public:
  // What Fp8Mode::rows reads besides the weight's values: its values (in, out) by other scales, and the scales of the
  // rows of both, (out) and (in) float32. Undefined for the other modes.
  struct Rows {
    at::Tensor transposed, scales, transposed_scales;
  };

  Fp8Layer(std::shared_ptr<const Fp8Shared> shared, ops::Fp8Weight weight, at::Tensor x_slot, at::Tensor grad_slot,
           Rows rows = {});

  bool runs() const;       // whether forward() takes the place of ops::linear() in this pass
  bool quantises() const;  // whether it also multiplies in 8 bits, with a scale for each tensor
  // As ops::linear() without a bias. linear: the layer's. residual: added, if defined. x_is_kept: see ops::fp8_linear.
  at::Tensor forward(const at::Tensor& x, const Linear& linear, const at::Tensor& residual = {},
                     bool x_is_kept = false) const;

  // For hand-written passes.
  const ops::Fp8Weight& weight() const { return weight_; }
  const at::Tensor& x_slot() const { return x_slot_; }
  const at::Tensor& grad_slot() const { return grad_slot_; }
  bool e5m2() const { return shared_->e5m2; }
  bool is_wide() const { return weight_.values.numel() >= shared_->wide_weight; }
  std::optional<double> margin() const;  // with current scaling

 private:
  std::shared_ptr<const Fp8Shared> shared_;
  ops::Fp8Weight weight_;
  at::Tensor x_slot_, grad_slot_;
  Rows rows_;
};

struct NamedLinear {
  std::string name;  // of the module in its model
  Linear* linear = nullptr;
};

// The layers that no pattern matches (globs as in optim.groups: * any text, ? one character). Throws Error(usage) with
// the names if a pattern matches none of them.
std::vector<NamedLinear> without_skipped(const std::vector<NamedLinear>& layers, const std::string& patterns);

// The layers of a model that multiply in 8 bits: their slots and their weights in e4m3. Each backward pass transposes
// wide weights, one at a time; narrow ones, and all with scales of rows, keep a second 8-bit weight. A training step
// calls begin_step(), quantize_weights() before its first pass, update_scales() after its last one, and count_step().
// quantize_weights() and update_scales() are asynchronous device work and can be captured, once for each mode.
// Registered state: "fp8.*". A form of the layers (format of gradients, names) other than the checkpoint's forgets the
// scales.
class Fp8Linears : public Stateful {
 public:
  static constexpr const char* kStatePrefix = "fp8.";

  // layers: all that could run in 8 bits; options.skip leaves some of them out. Build the model's ParameterSet first.
  // Starts with mode off. Throws Error(usage) if a size of a layer is not a multiple of 16, or if no layer is left.
  Fp8Linears(const std::vector<NamedLinear>& layers, const Fp8LinearsOptions& options);
  ~Fp8Linears() override;
  Fp8Linears(const Fp8Linears&) = delete;
  Fp8Linears& operator=(const Fp8Linears&) = delete;

  // Chooses the mode of the step. With delayed scaling in 8 bits without any history (no warm-up, or other state in the
  // checkpoint), the mode is current.
  void begin_step(bool warm_up);
  Fp8Mode mode() const { return shared_->mode; }

  // Computes the weights' scales and their 8-bit values, as those of the weights in the compute dtype. Nothing while
  // gathering.
  void quantize_weights() const;
  // The largest magnitudes that this step has met, of inputs and gradients: (2 layers) float32, not contiguous. Ranks
  // reduce it to their maximum before update_scales().
  at::Tensor maxima() const;
  // Computes new scales and the values() of the step.
  void update_scales() const;
  void count_step() { ++steps_; }
  int64_t steps() const { return steps_; }  // whose maxima are known

  // All scales 1, no history, no steps counted.
  void forget_scales();

  const std::vector<NamedLinear>& layers() const { return layers_; }
  // (layers, 8) each, in the order of layers().
  at::Tensor x_slots() const { return part(0); }
  at::Tensor gradient_slots() const { return part(1); }
  at::Tensor weight_slots() const { return part(2); }

  // Of the step before, by kind of tensor (input, gradient, weight), for each: the largest and the smallest scale, the
  // largest maximum, and the share of tensors whose maximum was beyond the range of their scale. (12) float64.
  const at::Tensor& values() const { return values_; }
  // Their names, e.g. "input/scale_max".
  static std::vector<std::string> value_names();

  // By kind of tensor (input, gradient, weight), for each: the scale of every layer, as the next pass uses it, and the
  // largest magnitude of the step before. (6, all layers) float64, in the order of the constructor's `layers`; zeros of
  // those that are left out. Of a weight both are those of the last quantize_weights(). Small kernels; can be captured.
  at::Tensor layer_values() const;

  // Of the passes since the last update_scales(): the share of each layer's values that were clamped because they were
  // beyond the range of their delayed scale. (2, all layers) float64, of inputs and of gradients, in the order of the
  // constructor's `layers`; zeros of those that are left out and with other modes. Weights have scales of their own
  // maxima, which clamp nothing. A few small kernels; can be captured.
  at::Tensor saturated() const;

  void visit_state(StateVisitor& visitor) override;

 private:
  at::Tensor part(int64_t kind) const { return slots_.narrow(0, kind * count(), count()); }
  int64_t count() const { return static_cast<int64_t>(layers_.size()); }
  at::Tensor history() const { return history_.narrow(0, 0, 2 * count()); }
  int64_t form_now() const;

  Fp8LinearsOptions options_;
  std::vector<NamedLinear> layers_;
  std::shared_ptr<Fp8Shared> shared_;
  std::vector<ops::Fp8Weight> weights_;
  std::vector<Fp8Layer::Rows> rows_;  // with options.rows
  // Rows of inputs, gradients and weights; behind them unused ones, so that the sizes do not depend on what is skipped.
  at::Tensor slots_, history_;
  at::Tensor values_;
  int64_t all_ = 0;    // layers of the constructor
  at::Tensor places_;  // (layers) int64: where they are among those
  at::Tensor widths_;  // (2 layers) float64: of a row of each layer's input, then of its gradient
  int64_t form_ = 0, steps_ = 0;
};

}  // namespace hrm::nn

#pragma once
// The optimizer's work and state shared out over the ranks: ZeRO stages 1 and 2 (Rajbhandari et al., "ZeRO: Memory
// Optimizations Toward Training Trillion Parameter Models", 2020).

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "hrm/nn/parameter.h"
#include "hrm/optim/clip.h"
#include "hrm/optim/ema.h"
#include "hrm/optim/optimizer.h"
#include "hrm/parallel/comm.h"
#include "hrm/parallel/gradient_reducer.h"
#include "hrm/state/registry.h"

namespace hrm::parallel {

// This rank's share of the parameters (GradientReducer::layout()): it has moments and averages of these alone, updates
// them, and gets the others' from the other ranks. Every rank still holds all masters and compute copies.
//
// Registered, each the share of a flat vector, as long on every rank: "optim.*.<moment>" for each moment (of Adam's
// kind "optim.*.exp_avg" and "optim.*.exp_avg_sq"), and with an average "ema.*". GatheredState makes of them what an
// optimizer and an Ema of whole parameters register.
class ParameterShards : public Stateful {
 public:
  // All must outlive this. `average_decay`: of the EMAs, which begin as the masters are; 0: none. `moments`:
  // optim::moment_names() of an optimizer whose update looks at one element at a time (not muon: a share is no matrix).
  // Throws Error(usage) where the model is too small for a share for every rank.
  ParameterShards(nn::ParameterSet& parameters, Comm& comm, const GradientReducer& reducer, double average_decay,
                  std::vector<std::string> moments = {"exp_avg", "exp_avg_sq"});

  // What an optimizer of this rank works on: parts of parameters, with the gradients in reducer.share().
  optim::ParameterGroup group(double weight_decay) const;
  // Of the parts; null without an average. EmaSwap needs gather().
  optim::Ema* ema() { return ema_.get(); }

  // The norm of the gradients of all ranks, as optim::global_norm of the whole vector up to rounding; the same bits on
  // each. A collective operation.
  optim::GradNorm global_norm(double max_norm, const optim::GradNormExtras& extras) const;

  // optimizer.step() on the parts, then all masters and compute copies are those of all ranks. update_ratio: 0-dim
  // float64 as there, over all ranks. A collective operation, without host synchronisation on a GPU.
  void step(optim::Optimizer& optimizer, const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip,
            const at::Tensor& update_ratio);

  // Every rank gets the others' parts of the masters. A collective operation.
  void gather();

  void visit_state(StateVisitor& visitor) override;

 private:
  // A run of elements that this rank has of one parameter.
  struct Part {
    size_t member;  // of the layout
    int64_t flat, share, size;
  };
  std::vector<at::Tensor> views(const at::Tensor& share) const;
  std::vector<at::Tensor> master_views() const;

  nn::ParameterSet& parameters_;
  Comm& comm_;
  const FlatLayout& layout_;
  at::Tensor gradients_;  // the reducer's
  std::vector<Part> parts_;
  std::vector<std::string> moment_names_;
  std::vector<at::Tensor> moments_;  // as their names, (layout.share()) float32
  at::Tensor average_;               // (layout.share()) float32
  at::Tensor moved_;                 // (2) float64: what the update ratio is made of
  std::unique_ptr<optim::Ema> ema_;
};

}  // namespace hrm::parallel

#pragma once
// The optimizer's work and state split over the ranks: ZeRO stages 1 and 2 (Rajbhandari et al., "ZeRO: Memory
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

// This rank's shard of the parameters (GradientReducer::layout()). It holds moments and EMA of the shard only, updates
// it, and receives the other shards from the other ranks. Every rank still holds all masters and compute copies.
//
// Registers the shard of each flat vector, equally long on every rank: "optim.*.<moment>" for each moment (for Adam
// "optim.*.exp_avg" and "optim.*.exp_avg_sq"), and with an EMA "ema.*". GatheredState turns them into the entries that
// an optimizer and an Ema of whole parameters register.
class ParameterShards : public Stateful {
 public:
  // All must outlive this. `average_decay`: of the EMA, which starts as the masters; 0: none. `moments`:
  // optim::moment_names() of an elementwise optimizer (not muon: a shard is not a matrix). Throws Error(usage) if the
  // model is too small to give every rank a shard.
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

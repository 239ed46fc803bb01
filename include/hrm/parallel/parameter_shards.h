#pragma once
// The optimizer's work and state split over the ranks: ZeRO stages 1, 2 and 3 (Rajbhandari et al., "ZeRO: Memory
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
#include "hrm/parallel/tensor_gradients.h"
#include "hrm/parallel/weight_gather.h"
#include "hrm/state/registry.h"

namespace hrm::parallel {

// This rank's shard of the parameters (GradientReducer::layout()). It holds moments and EMA of the shard only, updates
// it, and receives the other shards from the other ranks, as the reducer says of each piece (Residence):
//   whole   the float32 masters travel, and every rank has all of them
//   copies  compute copies travel, which are half as long in bfloat16; masters exist as shards only
//   turns   nothing travels after a step; WeightGather fetches compute weights when they are used
//
// Registers what this rank has of each parameter, as a part of the entries of whole parameters: "optim.<name>.<moment>"
// and with an EMA "ema.<name>". Masters of which only shards exist are registered in the place of the task's
// (visit_weights).
//
// Of a part of a model (tensor parallelism) this is a shard of the part: `comm` has the ranks with the same part. Then
// TensorGradients(gradients(), held_alike()) knows the other parts, and goes into global_norm() and step().
class ParameterShards : public Stateful {
 public:
  // All must outlive this. `average_decay`: of the EMA, which starts as the masters; 0: none. `moments`:
  // optim::moment_names() of an elementwise optimizer (not muon: a shard is not a matrix). Moves masters and compute
  // weights. Throws Error(usage) if the model is too small to give every rank a shard.
  ParameterShards(nn::ParameterSet& parameters, Comm& comm, const GradientReducer& reducer, double average_decay,
                  std::vector<std::string> moments = {"exp_avg", "exp_avg_sq"}, const GatherOptions& options = {});

  // What an optimizer of this rank works on: parts of parameters, with the gradients in reducer.share().
  optim::ParameterGroup group(double weight_decay) const;
  // Of the parts; null without an average. EmaSwap needs gather().
  optim::Ema* ema() { return ema_.get(); }
  // Null unless weights take turns.
  WeightGather* weights() const { return weights_.get(); }

  // The norm of the gradients of all ranks, as optim::global_norm of the whole vector up to rounding; the same bits on
  // each. A collective operation.
  optim::GradNorm global_norm(double max_norm, const optim::GradNormExtras& extras,
                              const TensorGradients* parts = nullptr) const;

  // optimizer.step() on the parts, then all masters and compute copies are those of all ranks. update_ratio: 0-dim
  // float64 as there, over all ranks. A collective operation, without host synchronisation on a GPU.
  void step(optim::Optimizer& optimizer, const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip,
            const at::Tensor& update_ratio, const TensorGradients* parts = nullptr);

  // The gradients of this rank's shard, (n) float32, and what of it all parts of the model hold alike.
  const at::Tensor& gradients() const { return gradients_; }
  std::vector<TensorGradients::HeldAlike> held_alike() const;

  // After anything that wrote masters: every rank gets the others' parts of what is whole, in float32, and of compute
  // copies. ParameterSet::refresh_compute() then makes the other copies. A collective operation.
  void gather();
  // Weights that take turns are fetched anew by the pass that follows; on all ranks at the same time.
  void begin_pass();

  // Of the weights on this rank, bytes; optimizer state and what every rank has of zero 0 (copies of whole masters,
  // other frozen weights) is not counted.
  struct WeightMemory {
    int64_t masters = 0;        // float32, whole or a shard
    int64_t turning = 0;        // elements of trained weights that take turns
    int64_t buffers = 0;        // in which weights take turns
    int64_t frozen = 0;         // of all ranks: frozen weights that take turns,
    int64_t frozen_shares = 0;  // and what this rank keeps of them
  };
  WeightMemory weight_memory() const;

  void visit_state(StateVisitor& visitor) override;
  // The visitor sees the entries of `task`, of masters that exist as shards only this rank's part.
  void visit_weights(Stateful& task, StateVisitor& visitor);

 private:
  // A run of elements that this rank has of one parameter.
  struct Part {
    size_t member;  // of the layout
    int64_t share, size;
    at::Tensor master;
  };
  std::vector<WeightGather::Unit> place_masters(const std::vector<GradientReducer::PieceUse>& uses);
  std::vector<at::Tensor> views(const at::Tensor& share) const;
  std::vector<at::Tensor> master_views() const;

  nn::ParameterSet& parameters_;
  Comm& comm_;
  const FlatLayout& layout_;
  at::Tensor gradients_;  // the reducer's
  std::vector<Part> parts_;
  // Masters of which every rank has all, and of which it has a shard.
  at::Tensor whole_, shard_;
  std::vector<FlatLayout::Piece> whole_pieces_;  // of whole_
  FlatLayout shard_layout_;
  // Compute copies that travel after a step, with this rank's masters.
  struct Copies {
    at::Tensor all, own, masters;
  };
  std::vector<Copies> copies_;
  std::unique_ptr<WeightGather> weights_;
  int64_t turning_ = 0, frozen_shares_ = 0;  // WeightMemory
  std::vector<std::string> moment_names_;
  std::vector<at::Tensor> moments_;  // as their names, (layout.share()) float32
  at::Tensor average_;               // (layout.share()) float32
  at::Tensor moved_;                 // (2) float64: what the update ratio is made of
  std::unique_ptr<optim::Ema> ema_;
};

}  // namespace hrm::parallel

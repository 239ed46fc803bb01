#pragma once
// Hierarchical Reasoning Model (Wang et al., arXiv 2506.21734).

#include "hrm/models/puzzle_network.h"

namespace hrm::models {

// One segment: H_cycles times { L_cycles times z_L = L(z_L, z_H + x); then z_H = H(z_H, z_L) }. Gradients flow only
// through the last call of each module (the paper's one-step approximation); all earlier calls run without autograd.
class Hrm : public PuzzleNetwork {
 public:
  Hrm(const config::ModelConfig& config, const PuzzleModelDims& dims, at::Device device);

  SegmentOutput segment(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows,
                        const SegmentDraws& draws = {}) override;
  at::Tensor q_values(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows,
                      const SegmentDraws& draws = {}) override;
  double flops_per_sample_step() const override;
  double flops_per_sample_segment() const override;

 private:
  // Runs all H cycles on (z_H, z_L) without autograd. The last cycle makes only `last_L_updates` updates of z_L and
  // none of z_H. Returns the last cycle's z_H + x, recorded if the caller records. `number` counts the updates.
  at::Tensor cycle(const at::Tensor& x, at::Tensor& z_H, at::Tensor& z_L, int64_t last_L_updates,
                   const SegmentDraws& draws, int64_t& number) const;

  std::shared_ptr<nn::ReasoningModule> H_level_, L_level_;
};

}  // namespace hrm::models

#pragma once
// The baseline of HRM and TRM, without recursion.

#include "hrm/models/puzzle_network.h"

namespace hrm::models {

// One segment is one pass of L_layers blocks: z_H = blocks(z_H + x). It is fully differentiable; the carry is detached
// between segments. Deep supervision, halting and the carry z_H work as in HRM. z_L is passed through unchanged.
// H_cycles and L_cycles must be 1.
class Transformer : public PuzzleNetwork {
 public:
  Transformer(const config::ModelConfig& config, const PuzzleModelDims& dims, at::Device device);

  SegmentOutput segment(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows,
                        const SegmentDraws& draws = {}) override;
  double flops_per_sample_step() const override;
  double flops_per_sample_segment() const override;

 private:
  std::shared_ptr<nn::ReasoningModule> L_level_;
};

}  // namespace hrm::models

#pragma once
// The baseline without recursion, to compare HRM and TRM with.

#include "hrm/models/puzzle_network.h"

namespace hrm::models {

// One segment is one pass of L_layers blocks: z_H = blocks(z_H + x), fully differentiable, the carry detached between
// segments. What is left of HRM is the outer loop: deep supervision, halting and the carry z_H. z_L is handed through
// untouched. H_cycles and L_cycles must be 1.
class Transformer : public PuzzleNetwork {
 public:
  Transformer(const config::ModelConfig& config, const PuzzleModelDims& dims, at::Device device);

  SegmentOutput segment(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows) override;
  double flops_per_sample_step() const override;
  double flops_per_sample_segment() const override;

 private:
  std::shared_ptr<nn::ReasoningModule> L_level_;
};

}  // namespace hrm::models

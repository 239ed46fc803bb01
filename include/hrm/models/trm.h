#pragma once
// Tiny Recursive Model (Jolicoeur-Martineau, arXiv 2510.04871).

#include "hrm/models/puzzle_network.h"

namespace hrm::models {

// One network plays both modules; z_H is the paper's answer y, z_L its latent z. One segment: H_cycles times { L_cycles
// times z_L = f(z_L, z_H + x); then z_H = f(z_H, z_L) }. Gradients flow through the whole of the last
// gradient_cycles() cycles; those before run without autograd.
class Trm : public PuzzleNetwork {
 public:
  Trm(const config::ModelConfig& config, const PuzzleModelDims& dims, at::Device device);

  SegmentOutput segment(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows,
                        const SegmentDraws& draws = {}) override;
  double flops_per_sample_step() const override;
  double flops_per_sample_segment() const override;
  bool blocks_run_once() const override { return false; }

 private:
  std::shared_ptr<nn::ReasoningModule> L_level_;
};

}  // namespace hrm::models

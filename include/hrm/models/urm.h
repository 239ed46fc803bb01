#pragma once
// Universal Reasoning Model (arXiv 2512.14693).

#include "hrm/models/puzzle_network.h"

namespace hrm::models {

// A Universal Transformer with one state h, the carry z_H; z_L is passed on unread. One segment: H_cycles * L_cycles
// times { h = h + x; then every block in order }. Gradients flow through the last gradient_cycles() * L_cycles updates;
// those before run without autograd. The blocks are those of TRM with a convolution in the SwiGLU (nn::DepthwiseConv).
class Urm : public PuzzleNetwork {
 public:
  Urm(const config::ModelConfig& config, const PuzzleModelDims& dims, at::Device device);

  SegmentOutput segment(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows,
                        const SegmentDraws& draws = {}) override;
  double flops_per_sample_step() const override;
  double flops_per_sample_segment() const override;
  bool blocks_run_once() const override { return config().gradient_cycles * config().L_cycles == 1; }

 private:
  std::shared_ptr<nn::ReasoningModule> layers_;
};

}  // namespace hrm::models

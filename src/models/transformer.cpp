#include "hrm/models/transformer.h"

namespace hrm::models {

Transformer::Transformer(const config::ModelConfig& config, const PuzzleModelDims& dims, at::Device device)
    : PuzzleNetwork(config, dims, device) {
  L_level_ = make_level("L_level", config.L_layers);
}

SegmentOutput Transformer::segment(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows,
                                   const SegmentDraws&) {
  return read_out(L_level_->forward(carry.z_H, embed_inputs(inputs, puzzle_rows)), carry.z_L);
}

double Transformer::flops_per_sample_segment() const {
  return static_cast<double>(config_.L_layers) * block_flops() + head_flops();
}

double Transformer::flops_per_sample_step() const {
  return (forward_passes() + 2) * flops_per_sample_segment();
}

}  // namespace hrm::models

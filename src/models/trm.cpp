#include "hrm/models/trm.h"

namespace hrm::models {

Trm::Trm(const config::ModelConfig& config, const PuzzleModelDims& dims, at::Device device)
    : PuzzleNetwork(config, dims, device) {
  L_level_ = make_level("L_level", config.L_layers);
}

SegmentOutput Trm::segment(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows) {
  const at::Tensor x = embed_inputs(inputs, puzzle_rows);
  at::Tensor z_H = carry.z_H, z_L = carry.z_L;
  {
    const at::NoGradGuard no_grad;
    for (int64_t h = 0; h + 1 < config_.H_cycles; ++h) {
      z_L = L_level_->recur(z_L, z_H + x, config_.L_cycles);
      z_H = L_level_->recur(z_H, z_L);
    }
  }
  // The whole last cycle is recorded.
  const at::Tensor injection = z_H + x;
  for (int64_t l = 0; l < config_.L_cycles; ++l) z_L = L_level_->forward(z_L, injection);
  z_H = L_level_->forward(z_H, z_L);
  return read_out(z_H, z_L);
}

double Trm::flops_per_sample_segment() const {
  const int64_t passes = config_.H_cycles * (config_.L_cycles + 1);
  return static_cast<double>(passes * config_.L_layers) * block_flops() + head_flops();
}

double Trm::flops_per_sample_step() const {
  const double backward =
      2 * (static_cast<double>((config_.L_cycles + 1) * config_.L_layers) * block_flops() + head_flops());
  return forward_passes() * flops_per_sample_segment() + backward;
}

}  // namespace hrm::models

#include "hrm/models/urm.h"

namespace hrm::models {

Urm::Urm(const config::ModelConfig& config, const PuzzleModelDims& dims, at::Device device)
    : PuzzleNetwork(config, dims, device) {
  layers_ = make_level("layers", config.L_layers);
}

SegmentOutput Urm::segment(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows,
                           const SegmentDraws& draws) {
  const at::Tensor x = embed_inputs(inputs, puzzle_rows);
  at::Tensor h = carry.z_H;
  int64_t number = 0;
  {
    const at::NoGradGuard no_grad;
    h = recur(*layers_, h, x, draws, number, (H_cycles() - 1) * L_cycles());
  }
  // The whole last cycle is recorded.
  for (int64_t l = 0; l < L_cycles(); ++l) h = update(*layers_, h, x, draws, number);
  return read_out(h, carry.z_L);
}

double Urm::flops_per_sample_segment() const {
  return static_cast<double>(H_cycles() * L_cycles() * config_.L_layers) * block_flops() + head_flops();
}

double Urm::flops_per_sample_step() const {
  const double backward = 2 * (static_cast<double>(L_cycles() * config_.L_layers) * block_flops() + head_flops());
  return forward_passes() * flops_per_sample_segment() + backward;
}

}  // namespace hrm::models

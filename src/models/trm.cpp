#include "hrm/models/trm.h"

namespace hrm::models {

Trm::Trm(const config::ModelConfig& config, const PuzzleModelDims& dims, at::Device device)
    : PuzzleNetwork(config, dims, device) {
  L_level_ = make_level("L_level", config.L_layers);
}

SegmentOutput Trm::segment(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows,
                           const SegmentDraws& draws) {
  const at::Tensor x = embed_inputs(inputs, puzzle_rows);
  at::Tensor z_H = carry.z_H, z_L = carry.z_L;
  int64_t number = 0;
  {
    const at::NoGradGuard no_grad;
    for (int64_t h = 0; h < H_cycles() - gradient_cycles(); ++h) {
      z_L = recur(*L_level_, z_L, z_H + x, draws, number, L_cycles());
      z_H = recur(*L_level_, z_H, z_L, draws, number);
    }
  }
  // The last cycles are recorded as a whole.
  std::vector<ReadOut> earlier;
  z_H = recorded_start(z_H, carry.z_H), z_L = recorded_start(z_L, carry.z_L);
  for (int64_t h = 0; h < gradient_cycles(); ++h) {
    if (h > 0) read_cycle(z_H, earlier);
    const at::Tensor injection = z_H + x;
    for (int64_t l = 0; l < L_cycles(); ++l) z_L = update(*L_level_, z_L, injection, draws, number);
    z_H = update(*L_level_, z_H, z_L, draws, number);
  }
  SegmentOutput out = read_out(z_H, z_L);
  out.earlier = std::move(earlier);
  return out;
}

double Trm::flops_per_sample_segment() const {
  const int64_t passes = H_cycles() * (L_cycles() + 1);
  return static_cast<double>(passes * config_.L_layers) * block_flops() + head_flops();
}

double Trm::flops_per_sample_step() const {
  return step_flops(gradient_cycles() * (L_cycles() + 1) * config_.L_layers);
}

}  // namespace hrm::models

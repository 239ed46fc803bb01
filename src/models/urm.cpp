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
    h = recur(*layers_, h, x, draws, number, (H_cycles() - gradient_cycles()) * L_cycles());
  }
  // The last cycles are recorded as a whole.
  std::vector<ReadOut> earlier;
  h = recorded_start(h, carry.z_H);
  for (int64_t cycle = 0; cycle < gradient_cycles(); ++cycle) {
    if (cycle > 0) read_cycle(h, earlier);
    for (int64_t l = 0; l < L_cycles(); ++l) h = update(*layers_, h, x, draws, number);
  }
  SegmentOutput out = read_out(h, carry.z_L);
  out.earlier = std::move(earlier);
  return out;
}

double Urm::flops_per_sample_segment() const {
  return static_cast<double>(H_cycles() * L_cycles() * config_.L_layers) * block_flops() + head_flops();
}

double Urm::flops_per_sample_step() const {
  return step_flops(gradient_cycles() * L_cycles() * config_.L_layers);
}

}  // namespace hrm::models

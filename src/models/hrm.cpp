#include "hrm/models/hrm.h"

namespace hrm::models {

Hrm::Hrm(const config::ModelConfig& config, const PuzzleModelDims& dims, at::Device device)
    : PuzzleNetwork(config, dims, device) {
  // Registered in the order in which a backward pass completes them (nn::GradientReady::groups).
  H_level_ = make_level("H_level", config.H_layers);
  L_level_ = make_level("L_level", config.L_layers);
}

at::Tensor Hrm::cycle(const at::Tensor& x, at::Tensor& z_H, at::Tensor& z_L, int64_t last_L_updates,
                      const SegmentDraws& draws, int64_t& number) const {
  at::Tensor injection;
  for (int64_t h = 0; h < H_cycles(); ++h) {
    const bool last_h = h + 1 == H_cycles();
    injection = z_H + x;  // recorded in gradient mode, for the caller's last step
    const at::NoGradGuard no_grad;
    z_L = recur(*L_level_, z_L, injection, draws, number, last_h ? last_L_updates : L_cycles());
    if (!last_h) z_H = recur(*H_level_, z_H, z_L, draws, number);
  }
  return injection;
}

SegmentOutput Hrm::segment(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows,
                           const SegmentDraws& draws) {
  const at::Tensor x = embed_inputs(inputs, puzzle_rows);
  at::Tensor z_H = carry.z_H, z_L = carry.z_L;
  int64_t number = 0;
  {
    const at::Tensor injection = cycle(x, z_H, z_L, L_cycles() - 1, draws, number);
    // The one-step gradient.
    z_L = update(*L_level_, recorded_start(z_L, carry.z_L), injection, draws, number);
  }
  z_H = recorded_start(z_H, carry.z_H);
  z_H = update(*H_level_, z_H, z_L, draws, number);
  return read_out(z_H, z_L);
}

at::Tensor Hrm::q_values(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows,
                         const SegmentDraws& draws) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = embed_inputs(inputs, puzzle_rows);
  at::Tensor z_H = carry.z_H, z_L = carry.z_L;
  int64_t number = 0;
  cycle(x, z_H, z_L, L_cycles(), draws, number);  // no step of this pass is differentiated
  if (settles()) return read_q(update(*H_level_, z_H, z_L, draws, number).select(1, 0));
  return read_q(H_level_->recur_first(z_H, z_L));
}

double Hrm::flops_per_sample_segment() const {
  const double L = static_cast<double>(config_.L_layers), H = static_cast<double>(config_.H_layers);
  return static_cast<double>(H_cycles()) * (static_cast<double>(L_cycles()) * L + H) * block_flops() + head_flops();
}

double Hrm::flops_per_sample_step() const {
  return step_flops(config_.L_layers + config_.H_layers);
}

}  // namespace hrm::models

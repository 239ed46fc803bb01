#include "hrm/models/hrm.h"

namespace hrm::models {

Hrm::Hrm(const config::ModelConfig& config, const PuzzleModelDims& dims, at::Device device)
    : PuzzleNetwork(config, dims, device) {
  // Registered in the order in which a backward pass completes them (nn::GradientReady::groups).
  H_level_ = make_level("H_level", config.H_layers);
  L_level_ = make_level("L_level", config.L_layers);
}

at::Tensor Hrm::recur(const at::Tensor& x, at::Tensor& z_H, at::Tensor& z_L, int64_t last_L_calls) const {
  at::Tensor injection;
  for (int64_t h = 0; h < config_.H_cycles; ++h) {
    const bool last_h = h + 1 == config_.H_cycles;
    injection = z_H + x;  // recorded in gradient mode, for the caller's last step
    const at::NoGradGuard no_grad;
    z_L = L_level_->recur(z_L, injection, last_h ? last_L_calls : config_.L_cycles);
    if (!last_h) z_H = H_level_->recur(z_H, z_L);
  }
  return injection;
}

SegmentOutput Hrm::segment(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows) {
  const at::Tensor x = embed_inputs(inputs, puzzle_rows);
  at::Tensor z_H = carry.z_H, z_L = carry.z_L;
  {
    const at::Tensor injection = recur(x, z_H, z_L, config_.L_cycles - 1);
    // The one-step gradient.
    z_L = L_level_->forward(z_L, injection);
  }
  z_H = H_level_->forward(z_H, z_L);
  return read_out(z_H, z_L);
}

at::Tensor Hrm::q_values(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = embed_inputs(inputs, puzzle_rows);
  at::Tensor z_H = carry.z_H, z_L = carry.z_L;
  recur(x, z_H, z_L, config_.L_cycles);  // no step of this pass is differentiated
  return read_q(H_level_->recur_first(z_H, z_L));
}

double Hrm::flops_per_sample_segment() const {
  const double L = static_cast<double>(config_.L_layers), H = static_cast<double>(config_.H_layers);
  return static_cast<double>(config_.H_cycles) * (static_cast<double>(config_.L_cycles) * L + H) * block_flops() +
         head_flops();
}

double Hrm::flops_per_sample_step() const {
  const double backward = 2 * (static_cast<double>(config_.L_layers + config_.H_layers) * block_flops() + head_flops());
  return forward_passes() * flops_per_sample_segment() + backward;
}

}  // namespace hrm::models

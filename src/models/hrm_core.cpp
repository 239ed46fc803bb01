#include "hrm/models/hrm_core.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/ops/gates.h"

namespace hrm::models {

HrmCore::HrmCore(const HrmCoreOptions& options, std::shared_ptr<MemoryLevel> h_mod, std::shared_ptr<MemoryLevel> l_mod,
                 std::shared_ptr<nn::Norm> out_norm, at::Device device)
    : options_(options) {
  require(options.h_cycles > 0 && options.l_steps > 0 && options.h_len > 0 && options.l_len > 0, ExitCode::usage,
          "the reasoning core needs cycles, steps and memories of at least 1, not h_cycles ", options.h_cycles,
          ", l_steps ", options.l_steps, ", h_len ", options.h_len, ", l_len ", options.l_len);
  require(options.gradient_cycles >= 0 && options.gradient_cycles <= options.h_cycles, ExitCode::usage,
          "the reasoning core cannot differentiate ", options.gradient_cycles, " of ", options.h_cycles,
          " cycles; gradient_cycles must be at least 0 and at most h_cycles");
  const int64_t D = options.width;
  const auto linear = [&](const char* name, int64_t out) {
    return register_module(name, std::make_shared<nn::Linear>(D, out, device, /*bias=*/true));
  };
  // Registered in the order in which a backward pass completes them (nn::GradientReady::groups).
  h_mod_ = register_module("h_mod", std::move(h_mod));
  l_mod_ = register_module("l_mod", std::move(l_mod));
  inp_to_h_ = linear("inp_to_h", D);
  inp_to_l_ = linear("inp_to_l", D);
  topdown_ = linear("topdown", D);
  bottomup_ = linear("bottomup", D);
  out_norm_ = register_module("out_norm", std::move(out_norm));
  out_ = linear("out", D);
  if (options.halting) halt_ = linear("halt", 1);
  h_init_ = register_parameter("h_init", at::empty({1, options.h_len, D}, at::device(device)));
  l_init_ = register_parameter("l_init", at::empty({1, options.l_len, D}, at::device(device)));
}

void HrmCore::init_own(uint64_t, const std::string&) {
  h_init_.zero_();
  l_init_.zero_();
}

HrmCoreOutput HrmCore::forward(const at::Tensor& x) const {
  const at::Tensor to_h = inp_to_h_->forward(x), to_l = inp_to_l_->forward(x);  // (B, D)
  const auto start = [&](const at::Tensor& init) { return init.to(x.scalar_type()).expand({x.size(0), -1, -1}); };
  HrmCoreOutput out{.z = {}, .halt = {}, .H = start(h_init_), .L = start(l_init_)};
  const bool all = options_.halting || options_.gradient_cycles == 0;
  const int64_t first_recorded = all ? 0 : options_.h_cycles - options_.gradient_cycles;
  std::vector<at::Tensor> halt;
  for (int64_t c = 0; c < options_.h_cycles; ++c) {
    {
      const at::AutoGradMode recorded(at::GradMode::is_enabled() && c >= first_recorded);
      out.L = l_mod_->recur(out.L, topdown_->forward(out.H.mean(1)) + to_l, options_.l_steps);
      out.H = h_mod_->recur(out.H, bottomup_->forward(out.L.mean(1)) + to_h, 1);
    }
    out.z.push_back(out_->forward(out_norm_->forward(out.H.mean(1))));
    if (halt_) halt.push_back(out.H);
  }
  if (halt_) out.halt = ops::halt_probabilities(halt, halt_->weight(), halt_->bias());
  return out;
}

}  // namespace hrm::models

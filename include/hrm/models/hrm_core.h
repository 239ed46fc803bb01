#pragma once
// The reasoning core of the HRM-LMs (after HRM, arXiv 2506.21734). A prompt vector drives two memories of a few vectors
// each, a slow one (H) and a fast one (L), through several cycles. Shapes: B rows, D width, C cycles.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "hrm/nn/init.h"
#include "hrm/nn/linear.h"
#include "hrm/nn/norm.h"

namespace hrm::models {

struct HrmCoreOptions {
  int64_t width = 0;
  int64_t h_len = 8, l_len = 64;  // vectors in each memory
  int64_t h_cycles = 4;           // C
  int64_t l_steps = 8;            // steps of L in each cycle
  // Number of last cycles that are differentiated: 1 is the one-step gradient, 0 means all.
  int64_t gradient_cycles = 1;
  // Predict a halting probability after each cycle; all cycles are then differentiated.
  bool halting = false;
};

// The network of one memory.
class MemoryLevel : public torch::nn::Module {
 public:
  // Repeats state = network(state + extra) `steps` times, (B, len, D) -> (B, len, D). extra (B, D) is added to each
  // vector of the memory.
  virtual at::Tensor recur(const at::Tensor& state, const at::Tensor& extra, int64_t steps) const = 0;
};

struct HrmCoreOutput {
  std::vector<at::Tensor> z;  // C outputs (B, D), compute dtype
  at::Tensor halt;            // (C, B) float32; undefined without halting
  at::Tensor H, L;            // the memories after the last cycle
};

// Each cycle:
//    l_steps times L = l_mod(L + topdown(mean H) + inp_to_l(x)), with H from before the cycle
//    once H = h_mod(H + bottomup(mean L) + inp_to_h(x))
//    z = out(out_norm(mean H)), halt = sigmoid(halt(H[0]))
// The memories start as the parameters h_init and l_init, initially zero. In cycles without gradient the memories are
// not differentiated, but out and out_norm still get gradients from z.
class HrmCore : public torch::nn::Module, public nn::HasOwnInit {
 public:
  HrmCore(const HrmCoreOptions& options, std::shared_ptr<MemoryLevel> h_mod, std::shared_ptr<MemoryLevel> l_mod,
          std::shared_ptr<nn::Norm> out_norm, at::Device device);

  HrmCoreOutput forward(const at::Tensor& x) const;  // x (B, D), compute dtype

  void init_own(uint64_t seed, const std::string& name) override;

 private:
  HrmCoreOptions options_;
  std::shared_ptr<nn::Linear> inp_to_h_, inp_to_l_, topdown_, bottomup_, out_, halt_;
  std::shared_ptr<MemoryLevel> h_mod_, l_mod_;
  std::shared_ptr<nn::Norm> out_norm_;
  at::Tensor h_init_, l_init_;
};

}  // namespace hrm::models

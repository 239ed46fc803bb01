#pragma once
// The reasoning core of HRM language models: two memories of a few vectors each, a slow one (H) and a fast one (L). A
// prompt vector drives them through several cycles (after HRM, arXiv 2506.21734). Shapes: B rows, D width, C cycles.

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
  int64_t h_len = 8, l_len = 64;  // vectors of the memories
  int64_t h_cycles = 4;           // C
  int64_t l_steps = 8;            // of L in each cycle
  // Cycles that are differentiated, counted from the last: 1 is the one-step gradient, 0 all of them.
  int64_t gradient_cycles = 1;
  // A probability of halting after each cycle; all cycles are differentiated then.
  bool halting = false;
};

// One memory's network.
class MemoryLevel : public torch::nn::Module {
 public:
  // `steps` times state = network(state + extra), extra for each vector of a memory: (B, len, D) and (B, D) -> (B, len,
  // D).
  virtual at::Tensor recur(const at::Tensor& state, const at::Tensor& extra, int64_t steps) const = 0;
};

struct HrmCoreOutput {
  std::vector<at::Tensor> z;  // C results (B, D), compute dtype
  at::Tensor halt;            // (C, B) float32; undefined without halting
  at::Tensor H, L;            // the memories after the last cycle
};

// Each cycle: l_steps times L = l_mod(L + topdown(mean H) + inp_to_l(x)), with H as before the cycle; then once
// H = h_mod(H + bottomup(mean L) + inp_to_h(x)); z = out(out_norm(mean H)), halt = sigmoid(halt(H[0])). Memories start
// as the parameters h_init and l_init, which are initialised to zeros. In cycles that are not differentiated, gradients
// of z reach out and out_norm, but not the memories.
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

#pragma once
// A mixture of experts (MoE) as the feed-forward part of a block: router, selection, experts and load balancing.
// Kernels and papers: hrm/ops/moe.h.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "hrm/nn/feed_forward.h"
#include "hrm/nn/parameter.h"
#include "hrm/ops/moe.h"

namespace hrm::nn {

struct MoeOptions {
  int64_t experts = 8;
  int64_t top_k = 2;
  int64_t inner = 0;                                               // inner width of one expert
  ops::ExpertActivation activation = ops::ExpertActivation::gelu;  // also of the shared experts
  ops::MoeScore score = ops::MoeScore::softmax;
  bool normalize = false;  // divide the weights of a token's picks by their sum
  // An expert accepts ceil(capacity_factor * tokens * top_k / experts) picks, those with the largest weights, and the
  // rest are dropped. 0: no limit.
  double capacity_factor = 0;
  double load_weight = 0.01;  // of the loss "moe_load"; 0: no such loss
  double z_weight = 0;        // of the loss "moe_z", mean of logsumexp(logits)^2; 0: no such loss
  // Step size of balance(), which raises the selection bias of experts with less than the mean load. 0: no bias.
  double bias_rate = 0;
  // In gradient mode the router's input is multiplied by random numbers in 1 - jitter .. 1 + jitter, redrawn every step
  // (ops::moe_jitter).
  double jitter = 0;
  int64_t jitter_seed = 0;
  int64_t shared_experts = 0;  // experts that see every token; computed as one expert of that many times the width
  // Adapters see w1, w3 and w2 of block_sparse_moe.experts.N instead of gate_proj, up_proj and down_proj of
  // mlp.experts.N.
  bool mixtral_names = false;
  // Of gate_up (or up) and down. Other than float32 these are frozen from the start, and never trained.
  at::ScalarType dtype = at::kFloat;
};

// How evenly the picks of one layer are spread. On the device.
struct MoeLoad {
  at::Tensor entropy;  // 0-dim float64: entropy of the loads / log(experts); 1 = perfectly balanced
  at::Tensor largest;  // 0-dim float64: largest load / mean load
  at::Tensor dropped;  // 0-dim float64: fraction of the picks dropped for lack of capacity
};

// Submodules: router (experts, width), up (experts * inner, width), down (experts * width, inner) and shared. up and
// down stack the matrices of all experts. Buffers: choice_bias (experts) float32 with bias_rate, and jitter_step with
// jitter.
//
// With SwiGLU, gate_up (experts * 2 inner, width) stands in place of up: of each expert `inner` rows of its gate, then
// as many of its up projection. So in Hugging Face's Qwen3-MoE, OLMoE and Mixtral, with e the expert:
//   gate_up rows 2 inner * e ...          experts.e.gate_proj.weight  (Mixtral: w1)
//   gate_up rows 2 inner * e + inner ...  experts.e.up_proj.weight    (w3)
//   down rows width * e ...               experts.e.down_proj.weight  (w2)
//   router                                gate.weight
// Their routers: Qwen3-MoE softmax with normalize (norm_topk_prob), OLMoE softmax without. Mixtral takes a softmax of
// the picked logits alone, which is the softmax of all with normalize.
class MoeFeedForward : public FeedForward, public HasStaleGradients, public HasAdaptableLinears {
 public:
  // Throws Error(usage) for invalid options.
  MoeFeedForward(int64_t width, const MoeOptions& options, at::Device device);

  // (tokens, width) -> same shape. In gradient mode it records auxiliary losses and counts the picks. The counts stay
  // at one device address, so a captured step can add to them.
  at::Tensor forward(const at::Tensor& x) override;

  // "moe_load": E / S^2 * sum over experts of (sum over tokens of their scores) * (picks before capacity), where each
  // token's scores add up to 1. It is 1 for a balanced load with top_k 1 (arXiv 2101.03961). "moe_z": arXiv 2202.08906.
  std::vector<AuxiliaryLoss> take_auxiliary_losses() override;

  // The gradients of up, or gate_up, and down.
  std::vector<StaleGradient> stale_gradients() override;

  // With SwiGLU and without shared experts: the projections of each expert. Otherwise none.
  std::vector<AdaptableLinear> adaptable_linears() override;
  std::string adapted_path(const std::string& path) const override;

  // The load of the picks counted since the last balance(). Does not synchronise.
  MoeLoad load() const;
  // Call after a step: moves the bias according to its load (arXiv 2408.15664) and resets the counts. `skip`: 0-dim
  // float32 on the device; non-zero keeps the bias. Does not synchronise; can be captured.
  void balance(const at::Tensor& skip);

  const MoeOptions& options() const { return options_; }
  const at::Tensor& choice_bias() const { return choice_bias_; }  // undefined without bias_rate
  const at::Tensor& counts() const { return counts_; }            // (experts + 1) float64; last: dropped

 private:
  at::Tensor router_input(const at::Tensor& x) const;
  int64_t up_rows() const;  // of one expert

  MoeOptions options_;
  int64_t width_;
  std::shared_ptr<Linear> router_, up_, down_;  // up_: gate_up with SwiGLU
  std::shared_ptr<FeedForward> shared_;         // null without shared experts
  at::Tensor choice_bias_, counts_;
  at::Tensor stale_;        // (2) bool on the CPU, for the gradients of up_ and down_
  at::Tensor jitter_step_;  // buffer, 0-dim int64: steps so far; undefined without jitter
  std::vector<AuxiliaryLoss> losses_;
};

}  // namespace hrm::nn

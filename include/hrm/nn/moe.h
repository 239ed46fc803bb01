#pragma once
// A mixture of experts as the feed-forward part of a block: router, choice, experts, and what keeps them all in use.
// The kernels and their papers: hrm/ops/moe.h.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "hrm/nn/feed_forward.h"
#include "hrm/nn/parameter.h"
#include "hrm/ops/moe.h"

namespace hrm::nn {

struct MoeOptions {
  int64_t experts = 8;
  int64_t top_k = 2;
  int64_t inner = 0;  // width inside of an expert
  ops::MoeScore score = ops::MoeScore::softmax;
  bool normalize = false;  // divide the weights of a token's picks by their sum
  // An expert takes ceil(capacity_factor * tokens * top_k / experts) picks, those with the largest weights, and the
  // rest add nothing; 0: all are taken.
  double capacity_factor = 0;
  double load_weight = 0.01;  // of the loss "moe_load"; 0: none
  double z_weight = 0;        // of the loss "moe_z", mean of logsumexp(logits)^2; 0: none
  // How far balance() moves the bias of each expert's choice, up for those with less than the mean load; 0: no bias.
  double bias_rate = 0;
  // In gradient mode the router sees x times numbers in 1 - jitter .. 1 + jitter (ops::moe_jitter), new ones each step.
  double jitter = 0;
  int64_t jitter_seed = 0;
  int64_t shared_experts = 0;  // that every token goes through, beside; as one of that many times the width
};

// How the picks of one layer were spread, on the device.
struct MoeLoad {
  at::Tensor entropy;  // 0-dim float64: that of the loads, divided by log(experts): 1 = all alike
  at::Tensor largest;  // 0-dim float64: the largest load / the mean one
  at::Tensor dropped;  // 0-dim float64: share of the picks that found no room
};

// Submodules router (experts, width), up (experts * inner, width) and down (experts * width, inner), each expert's
// matrix below the one before, and shared; buffers
// choice_bias (experts) float32 with bias_rate, and jitter_step with jitter.
class MoeFeedForward : public FeedForward, public HasStaleGradients {
 public:
  // Throws Error(usage) for numbers that make no sense.
  MoeFeedForward(int64_t width, const MoeOptions& options, at::Device device);

  // (tokens, width) -> the same. In gradient mode it leaves losses and counts the picks; the counts are on the device,
  // at one address, so that a captured step adds to them.
  at::Tensor forward(const at::Tensor& x) override;

  // "moe_load": E / S^2 * sum over experts of (sum over tokens of their scores, each token's adding up to 1) * (picks
  // before capacity), 1 where all is balanced and top_k is 1 (arXiv 2101.03961). "moe_z": arXiv 2202.08906.
  std::vector<AuxiliaryLoss> take_auxiliary_losses() override;

  // Of up and down.
  std::vector<StaleGradient> stale_gradients() override;

  // Of the picks counted since the last balance(). Waits for nothing.
  MoeLoad load() const;
  // After a step: moves the bias by its load (arXiv 2408.15664) and begins to count anew. `skip`: 0-dim float32 on the
  // device, non-zero = the bias stays. Waits for nothing; can be captured.
  void balance(const at::Tensor& skip);

  const MoeOptions& options() const { return options_; }
  const at::Tensor& choice_bias() const { return choice_bias_; }  // undefined without bias_rate
  const at::Tensor& counts() const { return counts_; }            // (experts + 1) float64; last: dropped

 private:
  at::Tensor router_input(const at::Tensor& x) const;

  MoeOptions options_;
  int64_t width_;
  std::shared_ptr<Linear> router_, up_, down_;
  std::shared_ptr<GeluFeedForward> shared_;  // null without shared experts
  at::Tensor choice_bias_, counts_;
  at::Tensor stale_;        // (2) bool on the CPU, of up's and down's gradients
  at::Tensor jitter_step_;  // buffer, 0-dim int64: steps so far; undefined without jitter
  std::vector<AuxiliaryLoss> losses_;
};

}  // namespace hrm::nn

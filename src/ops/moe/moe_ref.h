#pragma once
// A mixture of experts in plain ATen: the readable form, and the oracle of the layer that trains (Shazeer et al., arXiv
// 1701.06538; Fedus et al., "Switch Transformers", arXiv 2101.03961). Differentiable by ATen. Shapes: S tokens, D
// width, E experts, k picks of a token, F inner width of an expert.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hrm/ops/moe.h"

namespace hrm::ops::reference {

// What turns a router's logits into gates: softmax over the experts, or each expert's own sigmoid (DeepSeek-V3, arXiv
// 2412.19437).
enum class Router { softmax, sigmoid };

struct MoeOptions {
  int64_t top_k = 1;
  Router router = Router::softmax;
  bool renormalise = false;  // divide the gates of a token's picks by their sum
  // An expert takes ceil(capacity_factor * S * k / E) picks, those with the largest gates; 0: all (dropless).
  double capacity_factor = 1.25;
};

struct MoeRouting {
  at::Tensor probs;  // (S, E) float32, what the router gives
  at::Tensor index;  // (S, k) int64, experts by falling gate
  at::Tensor gate;   // (S, k) float32, differentiable
  at::Tensor kept;   // (S, k) bool, false: dropped, contributes nothing
  at::Tensor load;   // (E) int64, picks before capacity
};

// logits (S, E) float32. bias: (E) float32 that is added to the scores for the choice alone, not to the gates
// (auxiliary-loss-free balancing, Wang et al., arXiv 2408.15664), or undefined.
MoeRouting moe_route(const at::Tensor& logits, const MoeOptions& options, const at::Tensor& bias = {});

// The largest number of picks that an expert takes; S * k where nothing is dropped.
int64_t moe_capacity(int64_t tokens, int64_t experts, const MoeOptions& options);

// sum over picks of gate * expert(x), as ExpertActivation (hrm/ops/moe.h) says. x (S, D); up (E, F, D), or (E, 2F, D)
// with SwiGLU, down (E, D, F) of x's dtype. Products are in that dtype, the sum over picks in float32 (float64 for
// float64), rounded once.
at::Tensor moe_experts(const at::Tensor& x, const MoeRouting& routing, const at::Tensor& up, const at::Tensor& down,
                       ExpertActivation activation = ExpertActivation::gelu);

// Experts that every token passes, added without a gate: up (n, F, D) or (n, 2F, D), down (n, D, F) -> (S, D).
at::Tensor moe_shared(const at::Tensor& x, const at::Tensor& up, const at::Tensor& down,
                      ExpertActivation activation = ExpertActivation::gelu);

// E / S^2 * sum over experts of (sum over tokens of probs) * load: 1 where all is balanced and k = 1. 0-dim float32.
at::Tensor moe_load_loss(const MoeRouting& routing);

// mean over tokens of logsumexp(logits)^2 (Zoph et al., "ST-MoE", arXiv 2202.08906). 0-dim float32.
at::Tensor moe_router_z_loss(const at::Tensor& logits);

// One step of the bias for the choice: up by `rate` for experts with less than the mean load, down for those with more.
at::Tensor moe_balanced_bias(const at::Tensor& bias, const at::Tensor& load, double rate);

}  // namespace hrm::ops::reference
